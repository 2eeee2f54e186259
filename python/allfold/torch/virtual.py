"""Ranks that are threads of one process on virtual time: their process groups, messages and store.

    AllfoldGroup --> VirtualCommunicator --> SimulatedCommunicator of the group    collectives
                           '--------------> one of two ranks, for each tag         messages

One rank runs at a time: it holds a lock, the baton, and uses its own random numbers, until it waits for other ranks.
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .._allfold import AllfoldError, SimulatedCommunicator, SimulatedWork
from .elements import NOTHING, Place

# Tags from here on are the process group's own: the highest bit is the tag's kind, the other bits count the group's calls.
_INTERNAL = 1 << 40

_here = threading.local()


def here() -> Rank | None:
    """The simulated rank that this thread is; ``None`` if it is none."""
    return getattr(_here, "rank", None)


def be(rank: Rank | None) -> None:
    """Makes this thread that rank, or none."""
    _here.rank = rank


class Random:
    """The states of the random number generators (PyTorch's, Python's, NumPy's), of which each rank has its own."""

    def __init__(self) -> None:
        self.torch = torch.get_rng_state()
        self.python = random.getstate()
        # If NumPy is not imported yet, there is no state to keep.
        numpy = sys.modules.get("numpy.random")
        self.numpy = numpy.get_state() if numpy is not None else None

    def restore(self) -> None:
        torch.set_rng_state(self.torch)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy.random"].set_state(self.numpy)


class Baton:
    """The lock that the running rank holds."""

    def __init__(self, seed: int) -> None:
        before = Random()
        torch.manual_seed(seed)
        self.first = Random()
        before.restore()
        self._lock = threading.Lock()
        self.stopped = False
        # The first rank that raised: the others do not wait for values that it would set.
        self.failed: int | None = None

    def take(self, rank: Rank) -> None:
        self._lock.acquire()
        if self.stopped:
            self._lock.release()
            raise KeyboardInterrupt("the simulation was interrupted")
        rank.random.restore()

    def give(self, rank: Rank) -> None:
        rank.random = Random()
        self._lock.release()


class Rank:
    """A rank: its communicator, the kernels that are not charged to its clock yet, and when its steps ended."""

    def __init__(self, baton: Baton, native: SimulatedCommunicator) -> None:
        self.baton = baton
        self.native = native
        self.random = baton.first
        self.holds = False
        self.kernels: list[tuple[int, int]] = []
        self.steps: list[int] = []
        self.optimizer: Any = None
        """The optimiser whose steps count: the first one."""
        self.stepping: Any = None
        self.store: VirtualStore | None = None
        self.sent: dict[SimulatedCommunicator, SimulatedWork] = {}
        """The last message sent on each channel."""

    def take(self) -> None:
        self.baton.take(self)
        self.holds = True

    def give(self) -> None:
        if self.holds:
            self.holds = False
            self.baton.give(self)

    def waiting(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Charges the kernels computed so far, then makes a call that may wait for other ranks, which run meanwhile."""
        kernels, self.kernels = self.kernels, []
        self.give()
        try:
            if kernels:
                self.native.charge(kernels)
            return call(*arguments)
        finally:
            self.take()

    def finish(self) -> None:
        """Charges the last kernels, and waits until the rank's messages have been sent or have failed."""
        self.waiting(lambda: None)
        for work in self.sent.values():
            try:
                self.waiting(work.wait)
            except AllfoldError:
                pass


class VirtualStore(dist.Store):
    """The store of all ranks: a rank that waits in it passes the baton to other ranks."""

    def __init__(self, shared: dist.HashStore) -> None:
        super().__init__()
        self._shared = shared

    def _call(self, name: str, *arguments: Any) -> Any:
        rank, call = here(), getattr(self._shared, name)
        return call(*arguments) if rank is None else rank.waiting(call, *arguments)

    def set(self, key: str, value: Any) -> None:
        self._call("set", key, value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._call("get", key)

    def add(self, key: str, value: int) -> int:
        return self._call("add", key, value)

    def check(self, keys: list[str]) -> bool:
        return self._call("check", keys)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=300)) -> None:
        rank, until = here(), time.monotonic() + timeout.total_seconds()

        def waits() -> None:
            while True:
                try:
                    return self._shared.wait(keys, timedelta(milliseconds=50))
                except RuntimeError:
                    if rank is not None and rank.baton.failed is not None:
                        raise AllfoldError(f"rank {rank.baton.failed} has failed: {', '.join(keys)} may stay unset") from None
                    if time.monotonic() > until:
                        raise

        waits() if rank is None else rank.waiting(waits)

    def delete_key(self, key: str) -> bool:
        return self._call("delete_key", key)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self._call("compare_set", key, expected, desired)


class _Issued:
    """An operation that was issued; without a native handle it is done."""

    def __init__(self, rank: Rank, native: SimulatedWork | None) -> None:
        self._rank = rank
        self._native = native
        self._error: BaseException | None = None

    def wait(self, limit: float | None = None) -> None:
        native, self._native = self._native, None
        if native is not None:
            try:
                self._rank.waiting(native.wait)
            except RuntimeError as error:
                self._error = error
        if self._error is not None:
            raise self._error

    def is_done(self) -> bool:
        return self._native is None or self._rank.waiting(self._native.is_done)

    def exception(self) -> BaseException | None:
        return self._error

    def then(self, callback: Callable[[BaseException | None], None]) -> None:
        def told() -> None:
            try:
                self.wait()
            except RuntimeError as error:
                callback(error)
            else:
                callback(None)

        try:
            # At the end of the backward pass, before DDP waits for it there.
            torch.autograd.Variable._execution_engine.queue_callback(told)
        except RuntimeError:
            told()


class VirtualCommunicator:
    """A group's communicator on virtual time, with the methods of ``NativeCommunicator`` and of its messages."""

    def __init__(self, rank: Rank, native: SimulatedCommunicator) -> None:
        self._rank = rank
        self._native = native
        self.rank = native.rank
        self.size = native.size
        self._channels: dict[tuple[int, int, int], SimulatedCommunicator] = {}

    def operations(self) -> int:
        return 0

    # `_`: the number and the time limit of a call, which are not used on virtual time.

    def run(self, collective: str, source: Place, target: Place, op: str, root: int, *_: Any) -> None:
        self._rank.waiting(self._native.run, collective, source, target, op, root)

    def issue(self, collective: str, source: Place, target: Place, op: str, root: int, *_: Any) -> _Issued:
        return _Issued(self._rank, self._rank.waiting(self._native.issue, collective, source, target, op, root))

    def register(self, size: int) -> Any:
        raise ValueError("ranks on virtual time share no memory: use torch.empty")

    def abort(self, why: str) -> None:
        self._rank.waiting(self._native.abort, why)

    def close(self) -> None:
        self._rank.waiting(self._native.close, True)

    # Messages.

    def messages(self) -> VirtualCommunicator:
        return self

    def hold_at_most(self, bytes_: int) -> None:
        """Nothing is held: a sender keeps its message until it is received."""

    def _channel(self, source: int, target: int, tag: int) -> SimulatedCommunicator:
        """The communicator for messages with this tag from ``source`` to ``target``: messages with other tags, and the group's
        collectives, do not wait for them."""
        kind = tag if tag < _INTERNAL else 1 << (tag.bit_length() - 1)
        key = (source, target, kind)
        if key not in self._channels:
            name = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "little")
            self._channels[key] = self._rank.waiting(self._native.subgroup, [source, target], name)
        return self._channels[key]

    def send(self, to: int, tag: int, place: Place) -> None:
        channel = self._channel(self.rank, to, tag)
        self._rank.sent[channel] = self._rank.waiting(channel.send, 1, place)

    def receive(self, source: int | None, tag: int, place: Place | None = None) -> _Posted:
        if source is None and self.size != 2:
            raise ValueError("on virtual time a receive names its source, if there is more than one: pass src to recv")
        source = 1 - self.rank if source is None else source
        posted = _Posted(self, source, tag)
        if place is not None:
            posted.post(place)
        return posted


class _Posted:
    """A receive from a rank, which begins once its length is known."""

    def __init__(self, group: VirtualCommunicator, source: int, tag: int) -> None:
        self._group = group
        self._source = source
        self._channel = group._channel(source, group.rank, tag)
        self._work: SimulatedWork | None = None

    def post(self, place: Place) -> None:
        if self._work is None:
            self._work = self._group._rank.waiting(self._channel.receive, 0, place)

    def is_ready(self) -> bool:
        return self._work is not None and self._group._rank.waiting(self._work.is_done)

    def wait(self, place: Place, limit: float) -> int:
        self.post(place)
        self._group._rank.waiting(self._work.wait, place)
        return self._source

    def bytes(self, limit: float) -> tuple[int, bytes]:
        """Waits for an empty message."""
        return self.wait(NOTHING, limit), b""

