"""The ``allfold`` command: ``allfold simulate ..`` or ``python -m allfold simulate ..``."""

import signal
import sys

from ._allfold import main as _run


def main(*before: str) -> int:
    """Runs the command with these arguments and this process's; returns its exit code."""
    # The command decides itself what Ctrl-C and a closed pipe do, as any program without an interpreter does.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # `-P`: a folder `allfold` in the working directory must not be taken for the package.
    return _run([*before, *sys.argv[1:]], [sys.executable, "-P", "-m", "allfold"])


if __name__ == "__main__":
    sys.exit(main())
