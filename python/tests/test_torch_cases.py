"""Samples of PyTorch's own cases, and of ours for what PyTorch builds on a group: all of them pass.

The results of all cases, and Gloo's, are in docs/results/python/cases.md.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="SKIP: PyTorch is not installed")

HERE = os.path.dirname(os.path.abspath(__file__))
# One of each kind: the rest differ by how a module is wrapped.
PARALLEL = "dtensor_redistribute tensor_parallel ddp_hooks ddp_join zero_redundancy fully_sharded pipeline_1f1b distributed_checkpoint"


def last_line(*arguments: str, limit: float = 300.0) -> str:
    """What a script of this folder prints last."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=limit)
    lines = done.stdout.splitlines()
    assert lines, done.stderr[-2000:]
    return lines[-1] if done.returncode == 0 else f"{lines[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.skipif(importlib.util.find_spec("expecttest") is None, reason="SKIP: expecttest is not installed, which PyTorch's cases need")
def test_a_sample_of_pytorchs_own_cases_passes():
    assert last_line(os.path.join(HERE, "c10d_cases.py"), "--sample", "--ranks", "2") == "passed 40, failed 0, skipped 0"


def test_a_sample_of_what_pytorch_builds_on_a_group_passes():
    chosen = ",".join(PARALLEL.split())
    assert last_line(os.path.join(HERE, "parallel_cases.py"), "--ranks", "2", "--only", chosen) == "passed 8, failed 0, skipped 0"
