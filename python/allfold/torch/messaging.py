"""The part of a group that sends tagged messages: send, receive, uneven all-to-all, monitored barrier."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import Work

from .._allfold import DeadlineError
from .elements import NOTHING, back, dense, place, put, room, writable
from .options import Tensors, seconds, tensors
from .work import Done, Plan, Receiving

if TYPE_CHECKING:
    from .group import AllfoldGroup

_BY_SIZES = " (all_to_all by sizes, which the ranks exchange first: all ranks give split sizes or lists, or none does)"
# Tags above a user's 32 bits.
_UNEVEN = 1 << 40
_ARRIVED = 1 << 41
_RELEASED = 1 << 42


def _posted(messages: Any, source: int | None, tag: int, tensor: torch.Tensor) -> tuple[Any, Callable[[Any, float], int]]:
    """A receive into ``tensor``, and the function that writes the message there and returns its source."""
    target = room(tensor)
    finish = back(tensor, target)

    def take(native: Any, limit: float) -> int:
        source = native.wait(place(target), limit)
        if finish is not None:
            finish()
        return source

    return messages.receive(source, tag, place(target)), take


class Messaging:
    """The operations of a group that use messages: a mixin of ``AllfoldGroup``, which sets the attributes used here."""

    _messages: Any
    _uneven = 0
    _barriers = 0

    def _mail(self: AllfoldGroup, peer: int | None, tag: int) -> Any:
        """The messages, with a rank or with any, if a message can have this tag; otherwise raises ``ValueError``."""
        if self._messages is None:
            raise ValueError("this rank is alone in its group: there is nobody to send to or receive from")
        if peer is not None and self._root(peer) == self._rank:
            raise ValueError(f"rank {peer} cannot send a message to itself: copy the tensor instead")
        if not 0 <= tag < _UNEVEN:
            raise ValueError(f"the tag of a message is a number from 0 to {_UNEVEN - 1}, not {tag}")
        return self._messages

    def send(self: AllfoldGroup, sources: torch.Tensor | Tensors, to: int, tag: int = 0) -> Work:
        sources = tensors(sources)
        messages, memory = self._mail(to, tag), place(dense(sources[0]))

        def begin() -> Work:
            with self._places.explained():
                messages.send(to, tag, memory)
            return Done(sources)

        return self._begun(begin, sources)

    def recv(self: AllfoldGroup, outputs: torch.Tensor | Tensors, source: int | None, tag: int = 0) -> Work:
        outputs = tensors(outputs)
        messages, output = self._mail(source, tag), writable(outputs[0])

        def begin() -> Work:
            with self._places.explained():
                posted = _posted(messages, source, tag, output)
            return Receiving([posted], self.timeout, outputs, self._places.explain)

        return self._begun(begin, outputs)

    def recv_anysource(self: AllfoldGroup, outputs: torch.Tensor | Tensors, tag: int = 0) -> Work:
        return self.recv(outputs, None, tag)

    recvAnysource = recv_anysource  # noqa: N815

    def _exchange(self: AllfoldGroup, outputs: Tensors, sources: Tensors, result: Tensors, opts: Any) -> Work:
        """Sends tensor r of ``sources`` to rank r, and receives tensor r of ``outputs`` from it."""
        if len(outputs) != self._size or len(sources) != self._size:
            raise ValueError(f"all_to_all takes {self._size} inputs and outputs, not {len(sources)} and {len(outputs)}")
        mine, own = outputs[self._rank], sources[self._rank]
        if mine.numel() != own.numel() or any(each.dtype != own.dtype for each in (*outputs, *sources)):
            raise ValueError(
                f"all_to_all takes tensors of one type, and gives a rank its own input of {own.numel()} elements of {own.dtype} "
                f"back: its own output has {mine.numel()} of {mine.dtype}"
            )
        sources = [dense(source) for source in sources]
        [writable(output) for output in outputs]
        mark = self._mark(opts, _BY_SIZES)

        def begin() -> Work:
            # The collective may have failed before the messages begin.
            with self._order, self._places.explained():
                tag = _UNEVEN + self._uneven
                self._uneven += 1
                # A collective first, so that ranks which call something else get a mismatch at once.
                sizes = torch.tensor([source.numel() for source in sources])
                entered = self._issue(Plan("all_to_all", place(sizes), place(torch.empty_like(sizes)), []), mark)
                others = [rank for rank in range(self._size) if rank != self._rank]
                posted = [_posted(self._messages, peer, tag, outputs[peer]) for peer in others]
                for peer in others:
                    self._messages.send(peer, tag, place(sources[peer]))
            put([mine], [sources[self._rank]])
            return Receiving(posted, self._limit(opts), result, self._places.explain, entered)

        return self._ended(opts, begin, result)

    def monitored_barrier(
        self: AllfoldGroup, timeout: timedelta | None = None, wait_all_ranks: bool = False, waitAllRanks: bool = False  # noqa: N803
    ) -> None:
        """A barrier at which rank 0 names the ranks that did not come within ``timeout``.

        Raises:
            RuntimeError: on rank 0, with the missing ranks: all of them, or the first; on the others, that rank 0 did not answer.
        """
        limit = self.timeout if timeout is None else seconds(timeout)
        with self._order:
            number = self._barriers
            self._barriers += 1
        if self._size == 1:
            return
        if self._rank == 0:
            self._watch(number, limit, wait_all_ranks or waitAllRanks)
            return
        released = self._messages.receive(0, _RELEASED + number)
        self._messages.send(0, _ARRIVED + number, NOTHING)
        try:
            released.bytes(limit)
        except RuntimeError as error:
            raise RuntimeError(
                f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank 0. Please check rank 0 logs for faulty rank. Here: {error}"
            ) from None

    def _watch(self: AllfoldGroup, number: int, limit: float, all_ranks: bool) -> None:
        """Rank 0's part of a monitored barrier."""
        if limit <= 0:
            raise RuntimeError(f"Rank 0 timed out in monitoredBarrier: it waits {limit:g} s for the other ranks")
        posted = [(rank, self._messages.receive(rank, _ARRIVED + number)) for rank in range(1, self._size)]
        missing = []
        until = monotonic() + limit
        for rank, receive in posted:
            try:
                receive.bytes(max(until - monotonic(), 0.0))
            except RuntimeError as error:
                if not all_ranks:
                    what = "did not come" if isinstance(error, DeadlineError) else f"failed: {error}"
                    raise RuntimeError(f"Rank {rank} failed to pass monitoredBarrier in {round(limit * 1000)} ms: it {what}") from None
                missing.append(rank)
        if missing:
            names = ", ".join(map(str, missing))
            raise RuntimeError(f"Ranks {names} failed to pass monitoredBarrier in {round(limit * 1000)} ms")
        for rank in range(1, self._size):
            self._messages.send(rank, _RELEASED + number, NOTHING)
