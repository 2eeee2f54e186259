"""Training functions of ``test_torch_simulate.py``: the same on virtual time and in processes."""

from __future__ import annotations

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import init_process_group

STEPS = 3


def begin() -> None:
    """Joins the world: a process once, a simulated rank in every program."""
    if "RANK" not in os.environ or not dist.is_initialized():
        init_process_group("allfold")


def end() -> None:
    if "RANK" not in os.environ:
        dist.destroy_process_group()


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Dropout(0.1), nn.Linear(48, 8))


def share(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(8, 16, generator=numbers), torch.randn(8, 8, generator=numbers)


def flat(net: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


def loop(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for step in range(STEPS):
        x, y = share(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp() -> tuple[list[float], torch.Tensor]:
    """Data parallelism with several buckets, dropout that differs by rank, and Python's own random numbers."""
    begin()
    net = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.002)
    torch.manual_seed(50 + dist.get_rank())
    random.seed(dist.get_rank())
    losses = loop(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    losses.append(random.random())
    weights = flat(net)
    end()
    return losses, weights


def fsdp() -> tuple[list[float], torch.Tensor]:
    """Sharded parameters and a group of half of the ranks."""
    from torch.distributed.fsdp import fully_shard

    begin()
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(net)
    torch.manual_seed(50 + dist.get_rank())
    losses = loop(net, torch.optim.Adam(net.parameters(), lr=0.01))
    weights = torch.cat([parameter.detach().full_tensor().reshape(-1) for parameter in net.parameters()])
    half = dist.new_group(range(dist.get_world_size() // 2))
    mine = torch.tensor([float(dist.get_rank() + 1)])
    if dist.get_rank() < dist.get_world_size() // 2:
        dist.all_reduce(mine, group=half)
    losses.append(mine.item())
    end()
    return losses, weights


def pipeline() -> tuple[list[float], torch.Tensor]:
    """A layer on each rank, four microbatches, one forward and one backward pass in turn."""
    from torch.distributed import pipelining

    begin()
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    part = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    stage = pipelining.PipelineStage(part, rank, size, torch.device("cpu"))
    run = pipelining.Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        numbers = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, 16, generator=numbers), torch.randn(16, 16, generator=numbers)
        optimizer.zero_grad()
        parts: list[torch.Tensor] = []
        run.step(*((x,) if rank == 0 else ()), **({"target": y, "losses": parts} if rank == size - 1 else {}))
        optimizer.step()
        losses.append(torch.stack(parts).mean().item() if parts else 0.0)
    weights = flat(part)
    end()
    return losses, weights


def messages() -> tuple[list[float], torch.Tensor]:
    """Messages by tag and source, uneven blocks, objects, and both barriers."""
    begin()
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    got = []
    # The messages are received in the reverse order of the sends.
    works = [dist.isend(torch.full((3,), 10.0 * rank + tag), after, tag=tag) for tag in (1, 2)]
    for tag in (2, 1):
        into = torch.empty(3)
        dist.recv(into, before, tag=tag)
        got.append(into)
    # Both ranks of a pair receive first.
    into = torch.empty(2)
    receive = dist.irecv(into, before, tag=3)
    works.append(dist.isend(torch.full((2,), 100.0 + rank), after, tag=3))
    receive.wait()
    got.append(into)
    batched = torch.empty(2, 2)
    ops = [dist.P2POp(dist.isend, torch.full((2, 2), 7.0 + rank), after), dist.P2POp(dist.irecv, batched, before)]
    for work in [*works, *dist.batch_isend_irecv(ops)]:
        work.wait()
    got.append(batched.reshape(-1))
    # Rank r gives r + p elements to rank p.
    sent = [torch.full((rank + peer,), float(10 * rank + peer)) for peer in range(size)]
    received = [torch.empty(rank + peer) for peer in range(size)]
    dist.all_to_all(received, sent)
    got += received
    objects: list = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": peer} for peer in range(size)]
    dist.barrier()
    dist.monitored_barrier()
    # The last message of rank 0, which ends after it.
    if rank == 0:
        dist.send(torch.tensor([5.0]), 1)
    elif rank == 1:
        into = torch.empty(1)
        dist.recv(into, 0)
        got.append(into)
    return [], torch.cat(got)


def zero() -> tuple[list[float], torch.Tensor]:
    """An optimiser inside another optimiser: a step of both counts as one step."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    begin()
    net = nn.parallel.DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    losses = loop(net, optimizer)
    weights = flat(net)
    end()
    return losses, weights
