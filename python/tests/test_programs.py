"""The programs of docs/python.md: the document shows them as they are, and they print what the document says.

With ``ALLFOLD_BLESS=1`` what they print is written into the document.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "python.md"
BIN = Path(sys.executable).parent
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
# How many ranks the launcher starts for each program; `None`: the program runs without a launcher.
RANKS = {"ring": None, "ddp": 2, "fsdp2": 4, "mismatch": 2, "what_would_64_gpus_do": None}


def sections() -> dict[str, tuple[str, str]]:
    """Of each program in the document: its code, and the output that is shown."""
    found = {}
    for part in DOCUMENT.read_text().split("<!-- python/examples/")[1:]:
        name = part.split(".py -->")[0]
        code = part.split("```python\n")[1].split("```")[0]
        found[name] = code, part.split("```text\n")[1].split("```")[0]
    return found


def lines_of(text: str) -> list[str]:
    """The lines without what differs from run to run: in the order of ranks, without the folder of this clone."""
    return sorted(text.replace(f"{ROOT}/", "").strip().splitlines())


def assert_same(printed: str, shown: str) -> None:
    """Texts are equal; numbers with a fraction may differ by 2 %, since processors round losses differently."""
    printed_lines, shown_lines = lines_of(printed), lines_of(shown)
    texts = [[NUMBER.sub("#", line).split() for line in lines] for lines in (printed_lines, shown_lines)]
    assert texts[0] == texts[1], printed
    for got, expected in zip(printed_lines, shown_lines):
        for mine, its in zip(NUMBER.findall(got), NUMBER.findall(expected)):
            if "." in its:
                assert float(mine.replace(",", "")) == pytest.approx(float(its.replace(",", "")), rel=0.02), got
            else:
                assert mine == its, got


def bless(name: str, printed: str) -> None:
    """Writes the output of a program into the document."""
    text = DOCUMENT.read_text()
    before, after = text.split(f"<!-- python/examples/{name}.py -->")
    program, shown = after.split("```text\n", 1)
    # Lines of ranks are sorted by rank, in each rank's order of time; all other lines come first.
    lines = printed.replace(f"{ROOT}/", "").strip().splitlines()
    lines.sort(key=lambda line: line.split("]")[0] if line.startswith("[rank ") else "")
    shown = "\n".join(lines) + "\n```" + shown.split("```", 1)[1]
    DOCUMENT.write_text(f"{before}<!-- python/examples/{name}.py -->{program}```text\n{shown}")


def test_the_document_shows_every_program_as_it_is():
    programs = {path.stem: path.read_text() for path in (ROOT / "python" / "examples").glob("*.py")}
    shown = sections()
    assert shown.keys() == programs.keys() == RANKS.keys()
    for name, (code, _) in shown.items():
        assert code.strip() == programs[name].strip(), name


@pytest.mark.parametrize("name", RANKS)
def test_a_program_prints_what_the_document_says(name, tmp_path):
    if name != "ring":
        pytest.importorskip("torch")
    words = [sys.executable, ROOT / "python" / "examples" / f"{name}.py"]
    if RANKS[name] is not None:
        words = [BIN / "allfold", "launch", "-n", str(RANKS[name]), "--", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    if os.environ.get("ALLFOLD_BLESS") == "1":
        bless(name, done.stdout)
    assert_same(done.stdout, sections()[name][1])


def test_a_difference_is_seen():
    assert_same("rank 1: 2.00 s\nrank 0: 7", "rank 0: 7\nrank 1: 2.01 s")
    for printed in ["rank 0: 8\nrank 1: 2.01 s", "rank 0: 7\nrank 1: 2.10 s", "rank 0: 7", "rank 0: 7\nrank 1: 2.01 us"]:
        with pytest.raises(AssertionError):
            assert_same(printed, "rank 0: 7\nrank 1: 2.01 s")
