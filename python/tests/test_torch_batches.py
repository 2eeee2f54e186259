"""An exception in the middle of operations that belong together, which leaves their group as it was."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
pytest.importorskip("torch", reason="SKIP: PyTorch is not installed")

import torch
import torch.distributed as dist
from torch_ranks import join, launch, results

PATHS = {"shared memory": {}, "tcp": {"ALLFOLD_SHARED_MEMORY": "off"}}
CPU = torch.device("cpu")


def peers() -> tuple[int, int]:
    rank, size = dist.get_rank(), dist.get_world_size()
    return (rank + 1) % size, (rank - 1) % size


def batch(*last: dist.P2POp) -> None:
    """A batch whose first operations are good."""
    to, source = peers()
    good = [dist.P2POp(dist.isend, torch.full((3,), -1.0), to), dist.P2POp(dist.irecv, torch.empty(3), source)]
    dist.batch_isend_irecv([*good, *last])


def block(spoil: Callable[[], None], device: torch.device | None = CPU) -> None:
    """Coalesced operations of which the first are good."""
    to, source = peers()
    with dist._coalescing_manager(device=device, async_ops=True):
        dist.all_reduce(torch.full((3,), -1.0))
        if device is not None:
            dist.broadcast(torch.full((3,), -1.0), 0)
            dist.isend(torch.full((3,), -1.0), to)
            dist.irecv(torch.empty(3), source)
        spoil()


def interrupt() -> None:
    raise KeyboardInterrupt


def refused_in_a_block() -> None:
    try:
        block(lambda: dist.all_gather([torch.empty(1)], torch.ones(1)))
    finally:
        with pytest.raises(ValueError):
            block(lambda: dist.broadcast(torch.ones(2, device="meta"), 0))


SPOILED = {
    "a message to oneself": lambda: batch(dist.P2POp(dist.isend, torch.ones(3), dist.get_rank())),
    "a message from oneself": lambda: batch(dist.P2POp(dist.irecv, torch.ones(3), dist.get_rank())),
    "a sparse tensor": lambda: batch(dist.P2POp(dist.isend, torch.eye(3).to_sparse(), peers()[0])),
    "a meta tensor": lambda: batch(dist.P2POp(dist.irecv, torch.empty(3, device="meta"), peers()[1])),
    "an expanded receive": lambda: batch(dist.P2POp(dist.irecv, torch.zeros(1).expand(3), peers()[1])),
    "a negative tag": lambda: batch(dist.P2POp(dist.isend, torch.ones(3), peers()[0], tag=-1)),
    "freed memory": lambda: batch(dist.P2POp(dist.isend, freed(), peers()[0])),
    "no tensor": lambda: block(lambda: dist.isend(None, peers()[0])),
    "a rank outside": lambda: block(lambda: dist.isend(torch.ones(3), group_dst=7)),
    "an exception of the program": lambda: block(interrupt),
    "an exception of the program, without a device": lambda: block(interrupt, None),
    "operations of several kinds": lambda: block(lambda: dist.all_gather_into_tensor(torch.empty(6), torch.ones(2)), None),
    "a sum of a meta tensor": lambda: block(lambda: dist.all_reduce(torch.ones(3, device="meta"))),
    "a root outside": lambda: block(lambda: dist.group.WORLD.broadcast(torch.ones(3), 7)),
    "split sizes that do not fit": lambda: block(lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 1], [2, 2])),
    "a block in a block": lambda: block(lambda: block(interrupt)),
    "two refusals": refused_in_a_block,
}


def freed() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


def check_spoiled(rank: int, size: int, store: str) -> list[str]:
    join(rank, size, store)
    failed = []
    for name, spoil in SPOILED.items():
        try:
            spoil()
        except (ValueError, TypeError, RuntimeError, KeyboardInterrupt):
            pass
        else:
            failed.append(f"{name}: no exception")
        # Nothing was sent, and the group is as before.
        to, source = peers()
        got, sums, copied = torch.empty(3), torch.full((5,), float(rank + 1)), torch.full((2,), float(rank))
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((3,), float(rank)), to), dist.P2POp(dist.irecv, got, source)])
        [work.wait() for work in works]
        dist.all_reduce(sums)
        with dist._coalescing_manager(device=CPU):
            dist.broadcast(copied, 1)
        if got.tolist() != [source] * 3 or sums.tolist() != [size * (size + 1) / 2] * 5 or copied.tolist() != [1, 1]:
            failed.append(f"{name}: then {got.tolist()}, {sums.tolist()}, {copied.tolist()}")
    return failed


@pytest.mark.parametrize("path", PATHS)
def test_an_exception_in_the_middle_of_a_batch_leaves_the_group_as_it_was(path):
    assert results(launch(2, check_spoiled, environment=PATHS[path])) == [[], []]


def test_an_exception_in_the_middle_of_a_batch_leaves_a_simulated_group_as_it_was():
    from allfold.torch import simulate

    assert simulate(lambda: check_spoiled(dist.get_rank(), dist.get_world_size(), ""), ranks=2).results == [[], []]
