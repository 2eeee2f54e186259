"""Runs a function in several processes, a rank each, which ``allfold launch`` starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class RankError(RuntimeError):
    """A rank failed; ``rank`` is the first that failed, ``error`` the exception that it raised, if any."""

    def __init__(self, line: str, rank: int | None = None, error: BaseException | None = None) -> None:
        super().__init__(line)
        self.rank = rank
        self.error = error


def run(ranks: int, function: Callable[..., Result], *arguments: Any) -> list[Result]:
    """Runs ``function(*arguments)`` in ``ranks`` new processes of this host; returns what they returned, in order of ranks.

    The processes are started by ``allfold launch``: they have its environment (``RANK``, ``WORLD_SIZE``, ..), so
    :class:`allfold.Communicator` and ``torch.distributed`` find each other; their output is passed on, marked by rank; when one
    fails the others are ended. As with ``multiprocessing``'s *spawn*, the function, its arguments and its result must be
    picklable, and a script must guard its own start by ``if __name__ == "__main__"``.

    Raises:
        RankError: a rank raised, or died.
    """
    import pickle
    import tempfile
    from multiprocessing import spawn
    from multiprocessing.reduction import ForkingPickler
    from pathlib import Path

    if not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f"{ranks!r} ranks cannot run anything; give 1 or more, as a whole number")
    with tempfile.TemporaryDirectory(prefix="allfold-run-") as name:
        folder = Path(name)
        main = spawn.get_preparation_data("rank")
        del main["authkey"]
        (folder / "main").write_bytes(pickle.dumps(main))
        (folder / "call").write_bytes(bytes(ForkingPickler.dumps((function, arguments))))
        # `-P`: a folder `allfold` in the working directory must not be taken for the package.
        python = [sys.executable, "-P", "-m"]
        launch = [*python, "allfold", "launch", "-n", str(ranks), "--"]
        code, said = _launched([*launch, *python, "allfold._rank", name])
        if code == 0:
            return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(ranks)]
        # The launcher reports which rank failed first, and how it ended. That rank itself, if it could, wrote its exception.
        words = said.removeprefix("error: ").split()
        if words[:1] != ["rank"] or not words[1].isdigit():
            raise RankError(said.removeprefix("error: ") or f"the launcher's exit code is {code}")
        first, error = int(words[1]), None
        line = said.removeprefix("error: ")
        raised = folder / f"{first}.error"
        if (folder / f"{first}.lost").exists():
            # This rank ended because another rank had failed. If that rank raised an exception, the exception is the cause,
            # whichever process ended first.
            causes = sorted(folder.glob("*.error"), key=lambda file: file.stat().st_mtime_ns)
            raised = causes[0] if causes else folder / f"{first}.lost"
            first = int(raised.stem)
        if raised.exists():
            what, error = pickle.loads(raised.read_bytes())
            line = f"rank {first} failed: {what}"
        raise RankError(line, first, error) from error


def _launched(command: list[str]) -> tuple[int, str]:
    """Runs the launcher, and passes on what it and its ranks print. Returns its exit code and its last line of errors."""
    import subprocess

    said = ""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as launcher:
        assert launcher.stderr is not None
        try:
            for line in launcher.stderr:
                sys.stderr.write(line)
                if line.startswith("error: "):
                    said = line.strip()
        except BaseException:
            # Ctrl-C, for example: the launcher ends its ranks.
            launcher.terminate()
            raise
    return launcher.returncode, said
