"""How the processes of a group find each other: they exchange their addresses by PyTorch's store."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

from .._allfold import DeadlineError, Endpoint, NativeCommunicator


def _host() -> str:
    """A text that is equal for all processes of one host: the id of its boot, and the network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()


def _outward(address: str) -> str:
    """The address from which this host sends to ``address``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return probe.getsockname()[0]


class _Meeting:
    """The values that the ranks of a group exchange by a store, before they are connected.

    A rank that has left may make the group anew under the same store, in a later round. A process that joins as a rank which has not
    left is a second process of that rank, and is refused.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._round = store.add(f"joined/{rank}", 1)
        if self._round > 1 and not store.check([f"left/{self._round - 1}/{rank}"]):
            raise RuntimeError(
                f"rank {rank} has joined this group already, and has not left: two processes call themselves rank {rank}, or the one "
                "that did has died. Give every process a rank of its own, and start all ranks of a job anew together"
            )

    def tell(self, what: str, value: str) -> None:
        self._store.set(f"{what}/{self._round}/{self._rank}", value)

    def of_all(self, what: str) -> list[str]:
        """The value that each rank has set for ``what``, in order of ranks; waits for them."""
        keys = [f"{what}/{self._round}/{rank}" for rank in range(self._size)]
        try:
            self._store.wait(keys, timedelta(seconds=self._timeout))
        except RuntimeError as error:
            missing = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
            if not missing:
                raise
            who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(missing)}"
            raise DeadlineError(
                f"the timeout passed: {who} of {self._size} did not join within {self._timeout:g} s; rank {self._rank} waits"
            ) from error
        return [self._store.get(key).decode() for key in keys]

    def of_first(self, what: str) -> str:
        """The value that rank 0 has set for ``what``."""
        return self._store.get(f"{what}/{self._round}/0").decode()

    def sizes(self) -> None:
        """Refuses ranks that differ on the number of ranks, as soon as another rank's number is known."""
        self.tell("size", str(self._size))
        until = monotonic() + self._timeout
        waited = [rank for rank in range(self._size) if rank != self._rank]
        while waited and monotonic() < until:
            for rank in [rank for rank in waited if self._store.check([f"size/{self._round}/{rank}"])]:
                waited.remove(rank)
                size = int(self._store.get(f"size/{self._round}/{rank}"))
                if size != self._size:
                    raise ValueError(
                        f"rank {self._rank} joins a group of {self._size} ranks, and rank {rank} one of {size}: give all of them one "
                        "world size"
                    )
            sleep(0.001)
        self.of_all("size")

    def left(self) -> None:
        """Marks this rank as having left the group. The store's server may have ended before."""
        with suppress(RuntimeError):
            self._store.set(f"left/{self._round}/{self._rank}", "")


def join(store: Any, rank: int, size: int, timeout: float) -> tuple[NativeCommunicator, Callable[[], None]]:
    """This process as a rank of a group of ``size`` ranks, all of which call this with the same store. Also returns the function that
    the rank calls when it leaves.

    ``ALLFOLD_SECRET_FILE`` names the job's secret, without which ranks of several hosts do not connect; ``ALLFOLD_ADDRESS`` is the
    address at which others reach this host, if it is not the one from which this host reaches ``MASTER_ADDR``.

    Raises:
        DeadlineError: some ranks did not join within ``timeout`` seconds; the message has their numbers.
        ValueError: the ranks differ on the size.
        RuntimeError: another process has joined as this rank.
    """
    meeting = _Meeting(store, rank, size, timeout)
    meeting.sizes()
    meeting.tell("host", _host())
    if len(set(meeting.of_all("host"))) == 1:
        address = "127.0.0.1"
    else:
        address = os.environ.get("ALLFOLD_ADDRESS") or _outward(os.environ.get("MASTER_ADDR", "192.0.2.1"))
    endpoint = Endpoint(address)
    if rank == 0:
        meeting.tell("job", os.urandom(16).hex())
    meeting.tell("address", endpoint.address)
    addresses = meeting.of_all("address")
    return NativeCommunicator.join(endpoint, rank, addresses, bytes.fromhex(meeting.of_first("job")), timeout), meeting.left
