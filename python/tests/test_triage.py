"""``python -m allfold.triage``."""

from __future__ import annotations

import subprocess
import sys

from allfold import command


def triage(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "allfold.triage", *words], capture_output=True, text=True, timeout=60)


def test_the_module_says_what_the_command_says(tmp_path):
    command("hangs", cases=5, keep=tmp_path)
    case = str(tmp_path / "case-4")
    said = command("triage", case).text
    assert "left no dump" in said
    assert triage(case).stdout == said
    assert triage().returncode == 2
