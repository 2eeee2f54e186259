"""Real jobs of PyTorch under known faults, as ``python/bench/hangs.py`` runs them, and what triage says of their dumps."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="SKIP: PyTorch is not installed")

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench")
# The job and its backend, the number of ranks, the fault and its rank. A healthy job comes over each backend.
SAMPLE = [
    ("groups, gloo", 4, "healthy", 0),
    ("tensor, allfold", 4, "healthy", 0),
    ("ddp, gloo", 3, "left_out", 1),
    ("fsdp, allfold", 3, "other_size", 2),
    ("pipeline, allfold", 3, "missing_send", 1),
    ("groups, allfold", 4, "elsewhere", 2),
    ("groups, allfold", 4, "died", 1),
]


def test_triage_names_cause_and_rank_of_jobs_that_were_made_to_hang(tmp_path):
    made = [{"job": job, "ranks": ranks, "fault": fault, "rank": rank} for job, ranks, fault, rank in SAMPLE]
    # All at once: a hung job does nothing.
    program = f"""
import json, sys
sys.path.insert(0, {BENCH!r})
import hangs
hangs.AT_ONCE = {len(SAMPLE)}
hangs.run(json.loads(sys.argv[1]), 1, sys.argv[2])
"""
    subprocess.run([sys.executable, "-P", "-c", program, json.dumps(made), str(tmp_path)], check=True, timeout=400)
    judged = tmp_path / "hangs.jsonl"
    subprocess.run([sys.executable, "-P", "-m", "allfold", "hangs", "--from", str(tmp_path), "--json", str(judged)], check=True, timeout=60)
    records = [record for record in map(json.loads, judged.read_text().splitlines()) if record.get("kind") == "hang"]
    with_all = [record for record in records if record["withheld"] == "none"]
    assert [record["cause"] for record in with_all] == [fault for _, _, fault, _ in SAMPLE]
    assert not [record for record in with_all if not record["first"]]
    # A healthy rank is named in no case, whatever is withheld; and no healthy job is called hung.
    assert not [record for record in records if record["wrong"]]
