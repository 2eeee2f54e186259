"""Who hung, and why: ``python -m allfold.triage PATH..`` is ``allfold triage PATH..``."""

import sys

from .__main__ import main

if __name__ == "__main__":
    sys.exit(main("triage"))
