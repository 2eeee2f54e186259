"""PyTorch gives the answers that Allfold counted, with the weights of a checkpoint."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: scripts/python.sh installs it")
pytest.importorskip("safetensors", reason="safetensors is not installed: scripts/python.sh installs it")

ROOT = Path(__file__).parents[2]
ALLFOLD = Path(sys.executable).with_name("allfold")


def test_pytorch_counts_the_right_answers_of_a_checkpoint(tmp_path: Path) -> None:
    config = ROOT / "experiments" / "configs" / "digits-cnn.toml"
    keys = [f"checkpoint.dir={tmp_path}", "checkpoint.every=1000", "checkpoint.keep=1"]
    flags = [part for key in keys for part in ("--set", key)]
    train = [ALLFOLD, "train", "--config", config, "--ranks", "2", *flags]
    trained = subprocess.run(train, capture_output=True, text=True, cwd=ROOT, check=True)
    (checkpoint,) = tmp_path.glob("step-*.safetensors")
    program = [sys.executable, ROOT / "examples" / "inference" / "digits.py", checkpoint]
    counted = subprocess.run(program, capture_output=True, text=True, check=True)
    right = re.search(r"\d+ of \d+ test samples", counted.stdout)
    assert right, counted.stdout
    assert right.group() in trained.stdout, (right.group(), trained.stdout)
