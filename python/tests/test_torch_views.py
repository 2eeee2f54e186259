"""Calls on views of tensors, and on sources that are freed or overwritten."""

from __future__ import annotations

import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
pytest.importorskip("torch", reason="SKIP: PyTorch is not installed")

import torch
import message_programs
import torch.distributed as dist
import view_calls
from torch_ranks import join, launch, results

PATHS = {"shared memory": {}, "tcp": {"ALLFOLD_SHARED_MEMORY": "off"}}


def check_views(rank: int, size: int, store: str, waits: list[str], width: int, types: list[torch.dtype]) -> tuple[int, list[str]]:
    join(rank, size, store)
    return view_calls.wrong(waits, width, types)


@pytest.mark.parametrize("path", PATHS)
def test_every_call_on_every_view_gives_the_values_of_contiguous_tensors(path):
    for count, failed in results(launch(3, check_views, list(view_calls.WAITS), 3, view_calls.TYPES, limit=300, environment=PATHS[path])):
        assert count > 5000
        assert not failed, f"{len(failed)} of {count}: {failed[:5]}"


@pytest.mark.parametrize("path", PATHS)
def test_large_views_are_held_until_their_operation_is_done(path):
    for count, failed in results(launch(2, check_views, ["blocking", "wait"], 5000, [torch.float32], limit=300, environment=PATHS[path])):
        assert count > 700
        assert not failed, f"{len(failed)} of {count}: {failed[:5]}"


def test_every_call_on_every_view_gives_the_same_on_virtual_time():
    from allfold.torch import simulate

    for count, failed in simulate(view_calls.wrong, ["blocking", "wait", "poll"], 3, [torch.float32, torch.bool], ranks=2).results:
        assert count > 1000
        assert not failed, f"{len(failed)} of {count}: {failed[:5]}"


def check_shared_places(rank: int, size: int, store: str) -> list[str]:
    """Results that belong into a tensor whose elements share one place in memory."""
    group = join(rank, size, store)
    one = torch.zeros(1).expand(size * 2)
    calls = {
        "all_reduce": lambda: dist.all_reduce(one),
        "broadcast": lambda: dist.broadcast(one, (rank + 1) % size),
        "reduce": lambda: dist.reduce(one, rank),
        "all_gather": lambda: dist.all_gather([one] * size, torch.ones(size * 2)),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(one, torch.ones(2)),
        "gather": lambda: dist.gather(torch.ones(size * 2), [one] * size, rank),
        "scatter": lambda: dist.scatter(one, [torch.ones(size * 2)] * size, rank),
        "reduce_scatter": lambda: dist.reduce_scatter(one, [torch.ones(size * 2)] * size),
        "reduce_scatter of lengths": lambda: dist.reduce_scatter(one, [torch.ones(size * 2 + (each != rank)) for each in range(size)]),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(one, torch.ones(size * size * 2)),
        "all_to_all": lambda: dist.all_to_all([one] * size, [torch.ones(size * 2)] * size),
        "all_to_all_single": lambda: dist.all_to_all_single(one, torch.ones(size * 2)),
        "all_to_all_single by splits": lambda: dist.all_to_all_single(one, torch.ones(size * 2), [2] * size, [2] * size),
        "irecv": lambda: dist.irecv(one, (rank + 1) % size),
        "allreduce_coalesced": lambda: group.allreduce_coalesced([torch.ones(2), one]),
    }
    failed = []
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            failed += [] if "share one place in memory" in str(error) else [f"{name}: {error}"]
        else:
            failed.append(f"{name}: not refused")
    mine = torch.ones(2)
    dist.all_reduce(mine)
    return failed if mine.tolist() == [size] * 2 else [*failed, f"then {mine.tolist()}"]


def test_a_result_for_a_tensor_whose_elements_share_memory_is_refused_before_anything_is_sent():
    assert results(launch(2, check_shared_places)) == [[], []]


def test_random_programs_of_sends_and_receives_of_views_end_as_on_gloo_with_copies():
    for path, (_, other) in message_programs.compared(0, 20).items():
        assert not other, f"{path}: programs {other}"
