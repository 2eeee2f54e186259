"""The Python lines that called an operation, so that the error of ranks that disagree has the lines of both."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import CodeType
from typing import Any

from .._allfold import DeadlineError

_KEPT = 4096
_OURS = ("torch.", "allfold.")
# For each module encountered so far, whether it is of PyTorch or Allfold.
_KNOWN: dict[str, bool] = {}


class Places:
    """Where the last calls of a group were made. A call has a number of its own, and another as an operation of the group."""

    def __init__(self, store: Any, native: Any) -> None:
        self._store = store
        self._rank = native.rank
        # On virtual time each call becomes the operation of its number.
        self._called = getattr(native, "called", None) or (lambda operation: operation)
        self._count = count()
        self._calls = 0
        self._last: list[tuple[int, CodeType | None, int, str]] = [(-1, None, 0, "")] * _KEPT

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return self._calls

    def note(self, how: str = "") -> int:
        """Records the line, outside PyTorch and Allfold, that makes a call, and what else errors say of it; returns its number."""
        frame = sys._getframe(2)
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            inner = _KNOWN.get(name)
            if inner is None:
                inner = _KNOWN[name] = name == "torch" or name.startswith(_OURS)
            if not inner:
                break
            frame = frame.f_back
        number = next(self._count)
        self._calls = number + 1
        # The line number is looked up only when it is requested, since that takes longer than the rest of this function.
        self._last[number % _KEPT] = (number, None, 0, how) if frame is None else (number, frame.f_code, frame.f_lasti, how)
        return number

    def _line(self, operation: int) -> str:
        number = self._called(operation)
        if number is None:
            return "an earlier line"
        known, code, at, how = self._last[number % _KEPT]
        if known != number:
            return "an earlier line"
        if code is None:
            return f"autograd, in the backward pass{how}"
        line = next((line for begin, end, line in code.co_lines() if begin <= at < end), code.co_firstlineno)
        return f"{code.co_filename}:{line} in {code.co_name}{how}"

    @contextmanager
    def explained(self) -> Iterator[None]:
        """A context in which errors are raised as ``explain`` returns them."""
        try:
            yield
        except RuntimeError as error:
            raise self.explain(error) from None

    def explain(self, error: BaseException) -> BaseException:
        """An error of ranks that disagree, with the lines of both calls; a time-out in PyTorch's words; any other as it is."""
        if getattr(error, "explained", False):
            return error
        if isinstance(error, DeadlineError):
            return _explained(error, f"the timeout passed: {error}")
        ranks = {int(error.rank), int(error.peer)} if hasattr(error, "peer") else set()
        if not ranks:
            return error
        number = int(error.sequence)
        said = [f"  rank {self._rank} called it at {self._line(number)}"] if self._rank in ranks else []
        try:
            self._store.set(f"line/{number}/{self._rank}", self._line(number))
            wanted = {rank: f"line/{number}/{rank}" for rank in sorted(ranks - {self._rank})}
            until = time.monotonic() + 0.5
            while wanted and time.monotonic() < until:
                for rank in [rank for rank, key in wanted.items() if self._store.check([key])]:
                    said.append(f"  rank {rank} called it at {self._store.get(wanted.pop(rank)).decode()}")
                time.sleep(0.005)
        except (RuntimeError, OSError):
            pass  # the store's server has ended with its process
        return _explained(error, "\n".join([str(error), *said]))


def _explained(error: BaseException, text: str) -> BaseException:
    """The error with another text."""
    told = type(error)(text)
    told.__dict__.update(error.__dict__, explained=True)
    return told
