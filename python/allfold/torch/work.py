"""Handles of operations, as ``torch.distributed`` gives them to its users."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch.distributed import Work

from .._allfold import DeadlineError, NativeWork
from .elements import Place
from .virtual import here

Finish = Callable[[], None] | None

_calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_idle = threading.Semaphore(0)


def elsewhere(call: Callable[[], None]) -> None:
    """Runs ``call`` on another thread, an idle one if there is one: a callback that a user has chained to a future may wait for
    another operation, and the thread that runs operations must be free for that operation."""
    _calls.put(call)
    if not _idle.acquire(blocking=False):
        threading.Thread(target=_serve, name="allfold-callbacks", daemon=True).start()


def _serve() -> None:
    while True:
        _calls.get()()
        _idle.release()


def _forked() -> None:
    """A forked process begins without callback threads: those of its parent are not in it."""
    global _calls, _idle
    _calls, _idle = queue.SimpleQueue(), threading.Semaphore(0)


os.register_at_fork(after_in_child=_forked)


class Outcome:
    """A result or an error that a ``future`` gets. The error that a future of ``torch.futures`` is told is known to Python alone: C++
    takes it for the result, which DDP's reducer reads as tensors. One that a callback raises is known to both, as a ``RuntimeError``."""

    def __init__(self) -> None:
        self._told: torch.futures.Future = torch.futures.Future()
        self.future = self._told.then(_unwrapped)

    def set(self, result: list[torch.Tensor] | BaseException) -> None:
        self._told.set_result(result)


def _unwrapped(told: torch.futures.Future) -> list[torch.Tensor]:
    result = told.value()
    if isinstance(result, BaseException):
        raise result
    return result


class Plan(NamedTuple):
    """A collective on contiguous memory; once it is done, ``finish`` copies results to their tensors."""

    name: str
    source: Place
    target: Place
    result: list[torch.Tensor]
    op: str = "sum"
    root: int = 0
    finish: Finish = None


class Done(Work):
    """An operation that is done."""

    def __init__(self, result: list[torch.Tensor] | None = None, source: int = -1) -> None:
        super().__init__()
        self._result = result or []
        self._source = source

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._result

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self._result)
        return future


class Pending(Work):
    """Operations that were issued. ``finish`` copies their results to their tensors, once."""

    def __init__(self, natives: list[Any], result: list[torch.Tensor], finish: Finish, explain: Callable) -> None:
        super().__init__()
        self._natives = natives
        self._result = result
        self._finish = finish
        self._explain = explain
        self._lock = threading.Lock()
        self._future: torch.futures.Future | None = None

    def _finished(self) -> None:
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits until all are done, at most ``timeout``.

        Raises:
            AllfoldError: an operation failed, on all ranks of its group. It is a ``RuntimeError``.
            DeadlineError: the operations are not done after ``timeout``; they continue.
        """
        limit = timeout.total_seconds() if timeout else None
        try:
            for native in self._natives:
                native.wait(limit)
        except TimeoutError as error:
            raise DeadlineError(f"the timeout of this wait passed: {error}") from None
        except RuntimeError as error:
            raise self._explain(error) from None
        self._finished()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not all(native.is_done() for native in self._natives):
            return False
        with suppress(RuntimeError):  # `exception` has it
            self.wait()
        return True

    def exception(self) -> BaseException | None:
        error = next((error for native in self._natives if (error := native.exception()) is not None), None)
        return None if error is None else self._explain(error)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def result(self) -> list[torch.Tensor]:
        return self._result

    def get_future(self) -> torch.futures.Future:
        if self._future is None:
            outcome = Outcome()
            self._future = outcome.future

            def told() -> None:
                try:
                    error = self.exception()
                    if error is not None:
                        raise error
                    self._finished()
                except BaseException as error:
                    outcome.set(error)
                else:
                    outcome.set(self._result)

            # The operations are done in the order of issue.
            last = self._natives[-1]
            if isinstance(last, NativeWork) and not last.is_done():
                last.then(lambda _: elsewhere(told))
            else:
                last.then(lambda _: told())
        return self._future


class Receiving(Work):
    """Receives that were posted; a message is copied to its tensor when it is waited for."""

    def __init__(
        self,
        receives: list[tuple[Any, Callable[[Any, float], int]]],
        limit: float,
        result: list[torch.Tensor],
        explain: Callable,
        after: Work | None = None,
    ) -> None:
        super().__init__()
        self._explain = explain
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._receives = receives
        self._limit = limit
        self._result = result
        self._after = after
        self._source = -1
        # Called once at the end, with the error if there is one.
        self.ended: Callable[[BaseException | None], None] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = timeout.total_seconds() if timeout else self._limit
        with self._lock:
            if self._error is not None:
                raise self._error
            try:
                if self._after is not None:
                    self._after.wait(timeout)
                    self._after = None
                while self._receives:
                    native, take = self._receives[0]
                    self._source = take(native, limit)
                    self._receives.pop(0)
            except (RuntimeError, ValueError) as error:
                self._error = self._explain(error)
                self._tell(self._error)
                raise self._error from None
            self._tell(None)
        return True

    def _tell(self, error: BaseException | None) -> None:
        ended, self.ended = self.ended, None
        if ended is not None:
            ended(error)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if self._error is not None:
            return True
        if all(native.is_ready() for native, _ in self._receives) and (self._after is None or self._after.is_completed()):
            try:
                self.wait()
            except (RuntimeError, ValueError):
                pass  # `exception` has it
            return True
        return False

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._result

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        outcome = Outcome()

        def waiting() -> None:
            try:
                self.wait()
            except BaseException as error:
                outcome.set(error)
            else:
                outcome.set(self._result)

        if here() is not None:
            waiting()  # a simulated rank is one thread
        else:
            elsewhere(waiting)
        return outcome.future


class Together(Work):
    """Several operations as one."""

    def __init__(self, works: list[Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout) if timeout else work.wait()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future:
        each = torch.futures.collect_all([work.get_future() for work in self._works])
        return each.then(lambda done: [tensor for future in done.value() for tensor in future.value()])
