"""PyTorch's flight recorder for a group of Allfold: what its dumps hold, and what reads them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
pytest.importorskip("torch", reason="SKIP: PyTorch is not installed")

import torch
import torch.distributed as dist
from torch_ranks import join, launch, results

import allfold
from allfold import command

ON = {"TORCH_FR_BUFFER_SIZE": "100"}


def dump() -> dict:
    return pickle.loads(torch._C._distributed_c10d._dump_fr_trace(backend="allfold"))


def entries() -> list[dict]:
    return dump()["entries"]


def line(entry: dict) -> str:
    """The innermost line of an entry that is of this file."""
    frame = next(frame for frame in entry["frames"] if frame["filename"] == __file__)
    return f"{frame['name']}:{frame['line']}"


def everything(rank: int, size: int, store: str) -> dict:
    join(rank, size, store)
    other, first = 1 - rank, sys._getframe().f_lineno
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(4), async_op=True).wait()
    dist.broadcast(torch.ones(2, 5), 0)
    dist.all_gather([torch.empty(6) for _ in range(size)], torch.ones(6))
    dist.all_gather_into_tensor(torch.empty(14), torch.ones(7))
    dist.reduce_scatter_tensor(torch.empty(4), torch.ones(8))
    dist.all_to_all_single(torch.empty(2), torch.ones(2), [1, 1], [1, 1])
    dist.barrier()
    dist.send(torch.ones(9), 1) if rank == 0 else dist.recv(torch.empty(9), 0)
    ops = [dist.P2POp(dist.isend, torch.ones(10), other), dist.P2POp(dist.irecv, torch.empty(10), other)]
    [work.wait() for work in dist.batch_isend_irecv(ops)]
    group = dist.new_group([0, 1], group_desc="pair")
    dist.all_reduce(torch.ones(11), group=group)
    return {**dump(), "first": first}


def test_every_call_is_recorded_with_its_sizes_its_line_and_its_end():
    for rank, found in enumerate(results(launch(2, everything, environment=ON))):
        made, other = found["entries"], 1 - rank
        message = "send 0->1" if rank == 0 else "recv 1<-0"
        assert [entry["profiling_name"].removeprefix("allfold:") for entry in made] == [
            "all_reduce",
            "all_reduce",
            "broadcast",
            "all_gather",
            "_all_gather_base",
            "_reduce_scatter_base",
            "all_to_all_single",
            "barrier",
            message,
            f"send {rank}->{other}",
            f"recv {rank}<-{other}",
            "all_reduce",
        ]
        assert [entry["is_p2p"] for entry in made] == [False] * 8 + [True] * 3 + [False]
        assert [entry["input_sizes"] for entry in made[:3]] == [[[3]], [[4]], [[2, 5]]]
        assert all(entry["retired"] for entry in made)
        assert all(entry["timeout_ms"] == 30_000 for entry in made[:-1])
        lines = [found["first"] + at for at in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 11, 13)]
        assert [line(entry) for entry in made] == [f"everything:{number}" for number in lines]
        assert made[-1]["process_group"][1] == "pair" and made[0]["process_group"][1] == "default_pg"
        groups = {(name, group["desc"], group["ranks"]) for name, group in found["pg_config"].items()}
        assert groups == {(*entry["process_group"], "[0, 1]") for entry in made}


def open_call(rank: int, size: int, store: str) -> list[bool]:
    join(rank, size, store)
    shared = dist.group.WORLD._store
    if rank == 1:
        shared.get("seen")
        dist.all_reduce(torch.ones(3))
        return []
    work = dist.all_reduce(torch.ones(3), async_op=True)
    before = entries()[-1]["retired"]
    shared.set("seen", "")
    work.wait()
    # The engine tells of the end on a thread of its own.
    while not entries()[-1]["retired"]:
        pass
    return [before, entries()[-1]["retired"]]


def test_an_asynchronous_call_is_open_until_its_operation_has_ended():
    assert results(launch(2, open_call, environment=ON))[0] == [False, True]


def missing_send(rank: int, size: int, store: str, folder: str) -> None:
    os.environ["TORCH_FR_DUMP_TEMP_FILE"] = f"{folder}/nccl_trace_rank_"
    join(rank, size, store, seconds=3)
    for step in range(6):
        if rank == 0 and step < 5:
            dist.send(torch.ones(2), 1)
        if rank == 1:
            dist.recv(torch.empty(2), 0)
        dist.all_reduce(torch.ones(3))


def test_a_failure_writes_the_dumps_and_triage_names_the_rank_that_did_not_send(tmp_path):
    outcomes = launch(2, missing_send, str(tmp_path), environment=ON)
    assert all(issubclass(getattr(allfold, outcome.kind), RuntimeError) for outcome in outcomes), outcomes
    assert sorted(os.listdir(tmp_path)) == ["nccl_trace_rank_0", "nccl_trace_rank_1"]
    said = command("triage", str(tmp_path)).text.splitlines()
    assert "rank 0 called all_reduce(3 x Float)" in said[0] and "test_torch_recorder.py" in said[0], said
    assert "expect send" in said[0], said


def absent(rank: int, size: int, store: str, folder: str) -> None:
    join(rank, size, store)
    dist.all_reduce(torch.ones(3))
    if rank != 2:
        dist.all_reduce(torch.ones(4), async_op=True)
    with open(f"{folder}/nccl_trace_rank_{rank}", "wb") as file:
        file.write(torch._C._distributed_c10d._dump_fr_trace(backend="allfold"))
    # No rank leaves before all have written: their leaving would fail the operation.
    shared = dist.group.WORLD._store
    shared.set(f"written {rank}", "")
    [shared.get(f"written {other}") for other in range(size)]


def test_the_analyser_of_pytorch_reads_the_dumps(tmp_path):
    results(launch(3, absent, str(tmp_path), environment=ON))
    program = [sys.executable, "-P", "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path), "-p", "nccl_trace_rank_"]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert "missing ranks: {2}" in ran.stdout + ran.stderr, ran


def unrecorded(rank: int, size: int, store: str) -> tuple[str, int]:
    group = join(rank, size, store)
    dist.all_reduce(torch.ones(3))
    return type(group).__name__, len(entries())


@pytest.mark.parametrize("environment", [{}, {"TORCH_FR_BUFFER_SIZE": "0"}])
def test_without_the_variable_nothing_is_recorded(environment):
    assert results(launch(2, unrecorded, environment=environment)) == [("AllfoldGroup", 0)] * 2


def test_a_size_that_is_no_number_is_refused():
    for outcome in launch(2, unrecorded, environment={"TORCH_FR_BUFFER_SIZE": "many"}):
        assert outcome.kind == "ValueError" and "TORCH_FR_BUFFER_SIZE is 'many'" in outcome.error, outcome
