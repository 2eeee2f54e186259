"""The process group: what ``torch.distributed`` requires, in terms of Allfold's collectives and tagged messages.

    user, DDP, FSDP, DTensor --> AllfoldGroup --> NativeCommunicator   collectives, in the order of the calls
                                      '--------> NativeMessages        send, receive, uneven all-to-all, monitored barrier

A group is a Python subclass of ``ProcessGroup``: a call of a user does not pass through PyTorch's dispatcher. The group's
``Backend`` (see ``delegate``) is for callers that request one; the backend calls the group.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.autograd.profiler as profiler
from torch._C._distributed_c10d import _DistributedBackendOptions
from torch.distributed import PrefixStore, ProcessGroup, Work, get_global_rank

from .._allfold import NativeCommunicator
from . import simulation
from .copies import Copies
from .delegate import Delegate
from .elements import NOTHING, Place
from .joining import join
from .messaging import Messaging
from .options import Tensors, options, seconds
from .recorder import is_wanted, recorded
from .reductions import Reductions
from .where import Places
from .work import Done, Pending, Plan, Together

_OPEN: weakref.WeakSet[AllfoldGroup] = weakref.WeakSet()


# The work of a synchronous call, which is done when the call returns and whose result nobody reads.
_DONE = Done()
_UNMARKED = nullcontext()
_UNSET = timedelta(0)


def _marked(name: str) -> Any:
    """A mark of the operation in PyTorch's profiler, while that is on."""
    if not profiler._is_profiler_enabled:
        return _UNMARKED
    return torch._C._profiler._RecordFunctionFast(f"allfold:{name}")


class AllfoldGroup(Reductions, Copies, Messaging, ProcessGroup):
    """A group of ranks that are processes. Made by ``dist.init_process_group("allfold")``, ``dist.new_group`` and
    ``dist.split_group``."""

    def __init__(self, native: NativeCommunicator, store: Any, timeout: float, left: Callable[[], None] | None = None) -> None:
        ProcessGroup.__init__(self, store, native.rank, native.size)
        self.native = native
        self.timeout = timeout
        self._store = store
        self._rank = native.rank
        self._size = native.size
        self._places = Places(store, native)
        self._left = left
        self._messages = native.messages() if native.size > 1 else None
        bound = os.environ.get("ALLFOLD_MAILBOX_BYTES")
        if bound and self._messages is not None:
            if not bound.isdecimal():
                raise ValueError(f"ALLFOLD_MAILBOX_BYTES is {bound!r}: it must be a number of bytes")
            self._messages.hold_at_most(int(bound))
        # On virtual time there are no deadlines, and an operation takes no mark.
        self._marks = isinstance(native, NativeCommunicator)
        self._order = threading.RLock()
        self._coalesced: list[Callable[[], Work]] | None = None
        self._backend = Delegate(self)
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, self._backend)
        self._set_default_backend(ProcessGroup.BackendType.CUSTOM)

    # The group itself.

    def getBackendName(self) -> str:  # noqa: N802
        return "allfold"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getRank(self) -> int:  # noqa: N802
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        return self._size

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time-out of operations that begin from now on."""
        self.timeout = seconds(timeout)

    def abort(self, why: str = "its program called abort") -> None:
        """Fails the group: operations under way on any of its ranks, and all later calls, raise."""
        self.native.abort(why)

    def shutdown(self) -> None:
        """Leaves the group."""
        self.native.close()
        left, self._left = self._left, None
        if left is not None:
            left()

    def _get_sequence_number_for_group(self) -> int:
        return self._places.calls

    def _set_sequence_number_for_group(self) -> None:
        """Nothing is set: every rank counts from zero."""

    def __repr__(self) -> str:
        return f"<AllfoldGroup: rank {self._rank} of {self._size}>"

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> AllfoldGroup | None:
        """The group of some ranks of this one, in the order of ``new_ranks``; ``None`` on the others. The messages of both groups
        do not mix.

        Raises:
            ValueError: a rank is not in this group, or is named twice.
        """
        ranks = list(new_ranks)
        if len(set(ranks)) != len(ranks) or not all(0 <= rank < self._size for rank in ranks):
            raise ValueError(f"split_group takes different ranks from 0 to {self._size - 1}, not {ranks}")
        if self._rank not in ranks:
            return None
        name = group_name or f"split:{self._places.calls}:{'-'.join(map(str, ranks))}"
        made = _DistributedBackendOptions()
        made.store, made.group_id = PrefixStore(f"{name}/", self._store), name
        made.group_rank, made.group_size = ranks.index(self._rank), len(ranks)
        made.timeout = timedelta(seconds=self.timeout) if timeout is None else timeout
        made.global_ranks_in_group = [get_global_rank(self, rank) for rank in ranks]
        group = create(made)
        group._set_group_name(name)
        group._set_group_desc(group_desc or "split")
        return group

    def _start_coalescing(self, _: torch.device | None = None) -> None:
        """From now on calls only check their arguments. ``_end_coalescing`` issues their operations, and returns the work of all."""
        self._coalesced = []

    def _end_coalescing(self, _: torch.device | None = None) -> Work:
        begins, self._coalesced = self._coalesced or [], None
        return Together([begin() for begin in begins])

    def drop_coalesced(self) -> None:
        """Leaves the block of coalesced operations, none of which has begun, without issuing them."""
        self._coalesced = None

    def _begun(self, begin: Callable[[], Work], result: Tensors) -> Work:
        """The work of an operation that ``begin`` issues: now or, while operations are coalesced, at their end."""
        if self._coalesced is None:
            return begin()
        self._coalesced.append(begin)
        return Done(result)

    # One collective on contiguous memory.

    def _limit(self, opts: Any) -> float:
        """The time-out of a call, in seconds: its own, or the group's."""
        timeout = opts.timeout
        return self.timeout if timeout is None or timeout <= _UNSET else timeout.total_seconds()

    def _mark(self, opts: Any, how: str = "") -> tuple[int, float] | tuple[()]:
        """The number of this call, under which its Python line is kept with ``how``, and its time-out; nothing on virtual time."""
        number = self._places.note(how)
        return (number, self._limit(opts)) if self._marks else ()

    def _root(self, root: int) -> int:
        if 0 <= root < self._size:
            return root
        raise ValueError(f"rank {root} is outside the group: its ranks are 0 to {self._size - 1}")

    def _run(self, opts: Any, plan: Plan) -> None:
        """Runs a collective to its end."""
        mark = self._mark(opts)
        try:
            with _marked(plan.name):
                self.native.run(plan.name, plan.source, plan.target, plan.op, plan.root, *mark)
        except RuntimeError as error:
            raise self._places.explain(error) from None
        if plan.finish is not None:
            plan.finish()

    def _now(self, opts: Any, name: str, source: Place | None, target: Place | None, op: str = "sum", root: int = 0) -> Work | None:
        """Runs a collective to its end on tensors whose memory it can use in place: the fast path of small calls. ``None`` if the
        call needs a plan: for another tensor, or because it is asynchronous."""
        if source is None or target is None or opts.asyncOp or not self._marks:
            return None
        if self._coalesced is not None or profiler._is_profiler_enabled:
            return None
        try:
            self.native.run(name, source, target, op, root, self._places.note(), self._limit(opts))
        except RuntimeError as error:
            raise self._places.explain(error) from None
        return _DONE

    def _issue(self, plan: Plan, mark: tuple[int, float] | tuple[()]) -> Pending:
        """Issues a collective: it runs after those that were issued before."""
        try:
            with _marked(plan.name):
                native = self.native.issue(plan.name, plan.source, plan.target, plan.op, plan.root, *mark)
        except RuntimeError as error:
            raise self._places.explain(error) from None
        return Pending([native], plan.result, plan.finish, self._places.explain)

    def _do(self, opts: Any, plan: Plan) -> Work:
        """Runs a collective, or issues it if ``opts`` makes the call asynchronous."""
        if opts.asyncOp or self._coalesced is not None:
            mark = self._mark(opts)
            return self._begun(lambda: self._issue(plan, mark), plan.result)
        self._run(opts, plan)
        return _DONE

    def _do_all(self, opts: Any, plans: list[Plan], result: Tensors, finish: Callable[[], None] | None = None) -> Work:
        """Several collectives as one; ``finish`` comes after them."""
        marks = [self._mark(opts) for _ in plans]

        def begin() -> Work:
            with self._order:
                works = [self._issue(plan, mark) for plan, mark in zip(plans, marks)]

            def finished() -> None:
                for work in works:
                    work._finished()
                if finish is not None:
                    finish()

            natives = [native for work in works for native in work._natives]
            return Pending(natives, result, finished, self._places.explain)

        return self._ended(opts, begin, result)

    def _ended(self, opts: Any, begin: Callable[[], Work], result: Tensors) -> Work:
        """The work of operations that ``begin`` issues; a synchronous call gets it once they are done."""
        waits = not opts.asyncOp and self._coalesced is None
        work = self._begun(begin, result)
        if not waits:
            return work
        work.wait()
        return Done(result)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        return self._do(options(opts, timeout), Plan("barrier", NOTHING, NOTHING, []))


RecordedGroup = recorded(AllfoldGroup)


def create(options: Any, _: Any = None) -> AllfoldGroup:
    """Makes a group for ``torch.distributed``, with this process as a rank. The ranks find each other by the group's store."""
    simulated = simulation.group(options)
    if simulated is not None:
        return simulated
    limit = seconds(options.timeout)
    kind = RecordedGroup if is_wanted() else AllfoldGroup
    native, left = join(options.store, options.group_rank, options.group_size, limit)
    group = kind(native, options.store, limit, left)
    if isinstance(group, RecordedGroup):
        # The default group has all ranks, and lists none.
        group.global_ranks = options.global_ranks_in_group or list(range(options.group_size))
    _OPEN.add(group)
    return group


@atexit.register
def _close() -> None:
    """Leaves all groups before the interpreter ends, which notifies the other ranks."""
    for group in list(_OPEN):
        group.shutdown()


def _forked() -> None:
    """Forgets the groups of the parent process, which a forked process cannot use."""
    _OPEN.clear()


os.register_at_fork(after_in_child=_forked)
