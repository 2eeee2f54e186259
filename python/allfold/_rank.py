"""What a process of :func:`allfold.run` does: ``python -m allfold._rank FOLDER``."""

from __future__ import annotations

import os
import pickle
import sys
import time
from multiprocessing import spawn
from pathlib import Path

from . import AbortedError, PeerLostError

# Seconds that a rank which lost another rank waits for that rank's exception.
CAUSE_WAIT_S = 1.0


def run(folder: Path) -> int:
    """Calls the function as one rank, writes its result or error to ``folder``, and returns the exit code."""
    spawn.prepare(pickle.loads((folder / "main").read_bytes()))
    out = folder / os.environ["RANK"]
    try:
        function, arguments = pickle.loads((folder / "call").read_bytes())
        # A plain pickle holds all of the result; multiprocessing's may refer to memory that this process frees.
        result = pickle.dumps(function(*arguments))
    except BaseException as error:
        line = f"{type(error).__name__}: {error}"
        try:
            kept = pickle.dumps((line, error))
            pickle.loads(kept)
        except Exception:
            kept = pickle.dumps((line, None))
        # The exception of a rank that ended because another rank had failed has a file ending of its own: it is not the cause.
        lost = isinstance(error, (AbortedError, PeerLostError))
        part = out.with_suffix(".part")
        part.write_bytes(kept)
        part.rename(out.with_suffix(".lost" if lost else ".error"))
        until = time.monotonic() + CAUSE_WAIT_S
        while lost and time.monotonic() < until and not any(folder.glob("*.error")):
            time.sleep(0.01)
        # A rank without a result has failed, also where it called `sys.exit(0)`.
        if isinstance(error, SystemExit) and not error.code:
            return 1
        raise
    out.write_bytes(result)
    return 0


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1])))
