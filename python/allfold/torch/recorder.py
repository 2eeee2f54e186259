"""PyTorch's flight recorder for the calls of a group, while ``TORCH_FR_BUFFER_SIZE`` is set.

    a call --> the group --> a plain ProcessGroup, with PyTorch's hook --> Shadow, its backend --> the group's own method

PyTorch's hook records the calls that pass through PyTorch's dispatcher. Calls of an ``AllfoldGroup`` do not, so each is sent through
the dispatcher of a plain group, whose backend makes the call itself.

The hook takes an operation for ended when the backend returns: a backend in Python has no way to say so later. So where a call
returns before its operation has ended, another thread records it, and stays in the backend until the end. The stack of that thread
repeats the caller's lines, since the hook records the stack of the thread that it runs on.
"""

from __future__ import annotations

import ast
import atexit
import functools
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import torch
from torch._C._distributed_c10d import FlightRecorderHook, _dump_fr_trace_file
from torch.distributed import ProcessGroup, Work

from .delegate import Delegate
from .work import Done, Pending, Receiving, elsewhere

Body = Callable[[], None]

# Methods that a plain group has under the same name. `gather_single` is not: it calls `gather`.
_RECORDED = (
    "allreduce allreduce_coalesced broadcast allgather _allgather_base allgather_coalesced all_gather_single "
    "all_gather_single_coalesced allgather_into_tensor_coalesced reduce_scatter _reduce_scatter_base reduce_scatter_single "
    "reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced reduce gather scatter alltoall alltoall_base all_to_all_single "
    "send recv recv_anysource barrier"
).split()
# The most frames of a stack that are repeated.
_FRAMES = 64
# On a thread that records a call: what its backend runs. A call within it is a part of it, and is not recorded.
_here = threading.local()
_dumped = threading.Lock()
# Operations that failed on another thread, which may be writing the dump.
_failing: list[Ending] = []


@atexit.register
def _written() -> None:
    """Lets a dump be finished before the process ends. At its first dump with stacks PyTorch imports its compiler, which takes seconds."""
    for ending in _failing:
        ending.left.wait(60)


def is_wanted() -> bool:
    """Whether the environment asks for the recorder: PyTorch's variable, or its old name, is set to more than 0.

    Raises:
        ValueError: the variable is no whole number.
    """
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        value = os.environ.get(name)
        if value:
            try:
                return int(value) > 0
            except ValueError:
                raise ValueError(f"{name} is {value!r}: it must be a whole number of entries, 0 for none") from None
    return False


class Shadow(Delegate):
    """The backend behind PyTorch's hook: it runs what the thread's recorded call is made for."""


def _run(_: Shadow, *__: Any) -> Work:
    _here.body()
    return Done()


for _name in (*_RECORDED, "allreduce_sparse"):
    setattr(Shadow, _name, _run)


class Ending:
    """The end of an operation that is recorded on another thread."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.ended = threading.Event()
        self.left = threading.Event()
        self.error: BaseException | None = None

    def tell(self, error: BaseException | None = None) -> None:
        """Says that the operation has ended, with its error if it failed."""
        self.error = error
        if isinstance(error, RuntimeError):
            _failing.append(self)
        self.ended.set()

    def of(self, work: Work) -> None:
        """Has the end of a work told."""
        if isinstance(work, Receiving):
            work.ended = self.tell
        elif isinstance(work, Pending) and work._natives:
            # The operations are done in the order of issue.
            errors = (native.exception() for native in work._natives)
            work._natives[-1].then(lambda _: self.tell(next(filter(None, errors), None)))
        else:
            self.tell()


class Recorder:
    """Records the calls of a group, whose ranks have these numbers in the job."""

    def __init__(self, group: Any, ranks: list[int]) -> None:
        self._rank = ranks[group.rank()]
        self._shadow = Shadow(group)
        self._plain = ProcessGroup(group._store, group.rank(), group.size())
        self._plain._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, self._shadow)
        self._plain._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        self._plain._set_group_name(group.group_name)
        self._plain._set_group_desc(group.group_desc)
        self._hook = FlightRecorderHook.attach(self._plain, ranks)

    def during(self, name: str, arguments: tuple, named: dict, body: Body) -> None:
        """Runs ``body`` while PyTorch records the call of this name. Where the dispatcher refuses the arguments, as those of c10d's
        short forms, ``body`` runs unrecorded."""
        ran, failed = False, None

        def once() -> None:
            nonlocal ran, failed
            ran = True
            try:
                body()
            except BaseException as error:
                failed = error
                raise

        _here.body = once
        try:
            with torch.no_grad():
                getattr(self._plain, name)(*arguments, **named)
        except BaseException:
            if failed is not None:
                self._dump(failed)
                raise failed from None
            if ran:
                raise
        finally:
            del _here.body
        if not ran:
            body()

    def begun(self, name: str, arguments: tuple, named: dict) -> Ending:
        """Records a call from now until its ending is told."""
        ending, frames = Ending(), _frames(sys._getframe(2))

        def stay() -> None:
            ending.entered.set()
            ending.ended.wait()
            if ending.error is not None:
                # The error itself is the caller's.
                raise (RuntimeError if isinstance(ending.error, RuntimeError) else ValueError)(str(ending.error))

        def call() -> None:
            with suppress(BaseException):
                self.during(name, arguments, named, stay)
            ending.entered.set()
            ending.left.set()

        for frame in frames:
            call = functools.partial(_stand_in(*frame), call)
        elsewhere(call)
        ending.entered.wait()
        return ending

    def _dump(self, error: BaseException) -> None:
        """Writes the dump of this process at its first failed operation, where PyTorch's variables name a file for it."""
        names = any(os.environ.get(name) for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"))
        wanted = next(filter(None, map(os.environ.get, ("TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"))), "1")
        on = names and wanted.lower() not in ("0", "false", "no", "n", "f")
        if isinstance(error, RuntimeError) and on and _dumped.acquire(blocking=False):
            _dump_fr_trace_file(self._rank, includeStackTraces=True, backend="allfold")


def _frames(frame: FrameType | None) -> list[tuple[str, str, int]]:
    """A stack as files, names and lines, the innermost first."""
    frames = []
    while frame is not None and len(frames) < _FRAMES:
        frames.append((frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno or 1))
        frame = frame.f_back
    return frames


@functools.lru_cache(4096)
def _stand_in(file: str, name: str, line: int) -> Callable[[Body], None]:
    """A function that calls its argument, and whose frame has this file, name and line."""
    tree = ast.parse("lambda call: call()", mode="eval")
    function = eval(compile(ast.increment_lineno(tree, line - 1), file, "eval"))  # noqa: S307
    function.__code__ = function.__code__.replace(co_name=name)
    return function


def _recorded(name: str, own: Callable) -> Callable:
    """A group's method that has its calls recorded."""

    def call(self: Any, *arguments: Any, **named: Any) -> Work:
        if hasattr(_here, "body"):
            return own(self, *arguments, **named)
        recorder, opts = self.recorder(), (*arguments, *named.values())
        waits = name == "send" or any(not opt.asyncOp for opt in opts if hasattr(opt, "asyncOp"))
        if waits and self._coalesced is None:
            works: list[Work] = []
            recorder.during(name, arguments, named, lambda: works.append(own(self, *arguments, **named)))
            return works[0]
        ending = recorder.begun(name, arguments, named)
        try:
            before = self._coalesced and len(self._coalesced)
            work = own(self, *arguments, **named)
        except BaseException as error:
            ending.tell(error)
            raise
        if self._coalesced is None or len(self._coalesced) == (before or 0):
            ending.of(work)
        else:
            self._coalesced[-1] = _then(self._coalesced[-1], ending)
        return work

    return functools.wraps(own)(call)


def _then(begin: Callable[[], Work], ending: Ending) -> Callable[[], Work]:
    """``begin``, of an operation of a coalescing block, with its end told."""

    def begun() -> Work:
        try:
            work = begin()
        except BaseException as error:
            ending.tell(error)
            raise
        ending.of(work)
        return work

    return begun


def recorded(group: type) -> type:
    """A kind of group whose calls PyTorch's flight recorder records. ``global_ranks`` are to be set before the first call."""

    class Recorded(group):
        global_ranks: list[int]
        _recorder: Recorder | None = None

        def recorder(self) -> Recorder:
            # PyTorch names a group after it has been made.
            if self._recorder is None:
                self._recorder = Recorder(self, self.global_ranks)
            return self._recorder

    for name in _RECORDED:
        setattr(Recorded, name, _recorded(name, getattr(group, name)))
    Recorded.recvAnysource = Recorded.recv_anysource
    Recorded.__name__ = Recorded.__qualname__ = f"Recorded{group.__name__}"
    return Recorded
