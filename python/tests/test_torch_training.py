"""PyTorch's tools for distributed training on the backend allfold give the losses and weights of one process, or of Gloo.

One launch runs many cases of ``training_cases.py``, so that PyTorch is imported once for each rank of a launch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: scripts/python.sh installs it")

import training_cases  # noqa: E402

PROGRAM = Path(__file__).with_name("training_cases.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
ALLFOLD = [sys.executable, "-m", "allfold", "launch", "-n"]

# Cases whose losses and weights are those of one process, by the optimiser.
SGD = ["ddp_plain", "ddp_many_buckets", "ddp_static_graph", "ddp_no_sync"]
ADAM = ["zero_adam", "fsdp1", "fsdp2", "tensor_parallel", "sequence_parallel"]
PIPELINES = ["pipeline_gpipe", "pipeline_1f1b", "pipeline_gpipe_of_views", "pipeline_1f1b_of_views"]
# Cases whose numbers depend on the ranks: rounding on the way, or another number of steps on each.
LIKE_GLOO = [
    "ddp_unused_parameters", "ddp_fp16_hook", "ddp_bf16_hook", "ddp_powersgd_hook", "ddp_local_sgd", "join_uneven", "fsdp2_bf16",
    "fsdp2_clipped",
]  # fmt: skip
ON_TWO = [*SGD, *ADAM, *PIPELINES, "pipeline_interleaved", "checkpoint", *LIKE_GLOO]
ON_FOUR = ["ddp_plain", "fsdp2", "two_dimensions", "hybrid_shards", "pipeline_gpipe", "pipeline_1f1b", "checkpoint"]


def launched(folder: Path, launcher: list[str], ranks: int, backend: str, cases: list[str]) -> Path:
    """Runs the cases; returns the folder with the files that they wrote."""
    command = [*launcher, str(ranks), *(["--"] if launcher is ALLFOLD else []), *_program(launcher)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, backend, str(folder), *cases], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    (folder / "output").write_text(result.stdout + result.stderr)
    return folder


def _program(launcher: list[str]) -> list[str]:
    return [sys.executable, str(PROGRAM)] if launcher is ALLFOLD else [str(PROGRAM)]


def outcome(folder: Path, case: str) -> dict[str, torch.Tensor]:
    errors = sorted(folder.glob("*.error"))
    if not (folder / f"{case}.pt").exists():
        told = "\n".join(f"{path.name}: {path.read_text()}" for path in errors) or (folder / "output").read_text()[-4000:]
        pytest.fail(f"{case} left nothing: {told}")
    return torch.load(folder / f"{case}.pt")


def agree(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert mine.keys() == theirs.keys() == {"losses", "weights"}
    for name, value in mine.items():
        assert value.numel() > 0 and value.isfinite().all()
        torch.testing.assert_close(value, theirs[name], atol=1e-6, rtol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    return launched(tmp_path_factory.mktemp("two"), TORCHRUN, 2, "allfold", ON_TWO)


@pytest.fixture(scope="module")
def gloo(tmp_path_factory) -> Path:
    return launched(tmp_path_factory.mktemp("gloo"), TORCHRUN, 2, "gloo", LIKE_GLOO)


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> Path:
    return launched(tmp_path_factory.mktemp("four"), ALLFOLD, 4, "allfold", ON_FOUR)


@pytest.fixture(scope="module")
def one() -> dict[str, dict[str, torch.Tensor]]:
    """The losses and weights of one process, by case."""
    sgd, adam = training_cases.alone(), training_cases.alone(training_cases.adam)
    found = dict.fromkeys([*SGD, *PIPELINES, "pipeline_interleaved"], sgd)
    found |= dict.fromkeys([*ADAM, "two_dimensions", "hybrid_shards"], adam)
    return found | {"checkpoint": training_cases.continued()}


def test_every_case_is_asked_for():
    assert sorted({*ON_TWO, *ON_FOUR}) == sorted(training_cases.CASES)


@pytest.mark.parametrize("case", [case for case in ON_TWO if case not in LIKE_GLOO])
def test_two_ranks_of_torchrun_train_as_one_process(case, two, one):
    agree(outcome(two, case), one[case])


@pytest.mark.parametrize("case", LIKE_GLOO)
def test_two_ranks_of_torchrun_train_as_on_gloo(case, two, gloo):
    agree(outcome(two, case), outcome(gloo, case))


@pytest.mark.parametrize("case", ON_FOUR)
def test_four_ranks_of_allfold_launch_train_as_one_process(case, four, one):
    agree(outcome(four, case), one[case])


def test_the_launchers_were_those_that_were_asked_for(two, four):
    # Both launchers set TORCHELASTIC_RUN_ID: `allfold launch` to `allfold`, torchrun to an id of its own.
    under = lambda folder: {path.read_text() for path in folder.glob("launch.*")}  # noqa: E731
    assert len(list(two.glob("launch.*"))) == 2 and len(under(two)) == 1 and not under(two) & {"", "allfold"}
    assert len(list(four.glob("launch.*"))) == 4 and under(four) == {"allfold"}
