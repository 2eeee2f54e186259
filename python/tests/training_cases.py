"""Training with PyTorch's distributed tools on a backend: a rank's part of the cases of ``test_torch_training.py``.

    torchrun --nproc-per-node 2 python/tests/training_cases.py BACKEND FOLDER [CASE ..]

A case trains a small model for some steps and returns losses (means over the global batch) and weights. Rank 0 writes them to
``FOLDER/CASE.pt``; a case that raises writes ``FOLDER/CASE.RANK.error`` and ends the program.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

STEPS = 4
BATCH = 16
Outcome = dict[str, torch.Tensor]

CASES: dict[str, Callable[[], Outcome]] = {}


def case(function: Callable[[], Outcome]) -> Callable[[], Outcome]:
    CASES[function.__name__] = function
    return function


# What all cases train, and on what.


def model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 8)
    )


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step."""
    numbers = torch.Generator().manual_seed(100 + step)
    return torch.randn(BATCH, 16, generator=numbers), torch.randn(BATCH, 8, generator=numbers)


def share(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's rows of the global batch of a step."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return tuple(part.chunk(size)[rank] for part in batch(step))


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def mean(loss: torch.Tensor) -> torch.Tensor:
    """The mean of the ranks' losses."""
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


def flat(module: nn.Module) -> torch.Tensor:
    """The weights, as one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def trained(net: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Trains on this rank's share; returns the losses."""
    losses = []
    for step in range(STEPS):
        x, y = share(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(mean(loss))
    return torch.stack(losses)


def alone(optimizer=sgd) -> Outcome:
    """The same training in one process, on the whole batch."""
    net = model()
    steps = optimizer(net.parameters())
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        steps.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        steps.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "weights": flat(net)}


# Data parallelism.


def ddp(hook=None, **options) -> Outcome:
    net = nn.parallel.DistributedDataParallel(model(), **options)
    if hook is not None:
        hook(net)
    return {"losses": trained(net, sgd(net.parameters())), "weights": flat(net)}


@case
def ddp_plain() -> Outcome:
    return ddp()


@case
def ddp_many_buckets() -> Outcome:
    return ddp(bucket_cap_mb=0.002, gradient_as_bucket_view=True)


@case
def ddp_static_graph() -> Outcome:
    return ddp(static_graph=True)


class TwoHeads(nn.Module):
    """A model with three heads: a rank uses the first two in turn, and no rank uses the third."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.body, self.heads = nn.Linear(16, 32), nn.ModuleList([nn.Linear(32, 8) for _ in range(3)])
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.heads[(dist.get_rank() + self.calls) % 2](self.body(x))


@case
def ddp_unused_parameters() -> Outcome:
    """In each step a rank uses one of two heads; no rank uses the third."""
    net = nn.parallel.DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
    return {"losses": trained(net, sgd(net.parameters())), "weights": flat(net)}


@case
def ddp_no_sync() -> Outcome:
    """The gradients of two halves of the share, added up before they are sent."""
    net = nn.parallel.DistributedDataParallel(model())
    optimizer = sgd(net.parameters())
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        halves = list(zip(*(part.chunk(2) for part in share(step)), strict=True))
        total = torch.zeros(())
        for at, (x, y) in enumerate(halves):
            if at == 0:
                with net.no_sync():
                    loss = nn.functional.mse_loss(net(x), y) / 2
                    loss.backward()
            else:
                loss = nn.functional.mse_loss(net(x), y) / 2
                loss.backward()
            total += loss.detach()
        optimizer.step()
        losses.append(mean(total))
    return {"losses": torch.stack(losses), "weights": flat(net)}


@case
def ddp_fp16_hook() -> Outcome:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return ddp(lambda net: net.register_comm_hook(None, default_hooks.fp16_compress_hook))


@case
def ddp_bf16_hook() -> Outcome:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return ddp(lambda net: net.register_comm_hook(None, default_hooks.bf16_compress_hook))


@case
def ddp_powersgd_hook() -> Outcome:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)
    return ddp(lambda net: net.register_comm_hook(state, powerSGD_hook.powerSGD_hook))


@case
def ddp_local_sgd() -> Outcome:
    """Local SGD: after the first step gradients stay on their rank, and weights are averaged every second step."""
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    state = post_localSGD_hook.PostLocalSGDState(None, dist.new_subgroups(1)[0], start_localSGD_iter=1)
    net = nn.parallel.DistributedDataParallel(model())
    net.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(sgd(net.parameters()), PeriodicModelAverager(period=2, warmup_steps=1))
    return {"losses": trained(net, optimizer), "weights": flat(net)}


@case
def join_uneven() -> Outcome:
    """Rank r has r batches more than rank 0."""
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = nn.parallel.DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    last = torch.zeros(())
    with Join([net, optimizer]):
        for step in range(STEPS + dist.get_rank()):
            x, y = share(step)
            optimizer.zero_grad()
            last = nn.functional.mse_loss(net(x), y)
            last.backward()
            optimizer.step()
    return {"losses": mean(last)[None], "weights": flat(net)}


@case
def zero_adam() -> Outcome:
    """Every rank keeps the state of some parameters; rank 0 gets all of it for a checkpoint."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = nn.parallel.DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    losses = trained(net, optimizer)
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(net.parameters()))
    return {"losses": losses, "weights": flat(net)}


# Sharded parameters.


@case
def fsdp1() -> Outcome:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    net = FullyShardedDataParallel(model(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.device("cpu"))
    losses = trained(net, adam(net.parameters()))
    with FullyShardedDataParallel.summon_full_params(net):
        return {"losses": losses, "weights": flat(net).clone()}


def sharded(mesh=None, **options) -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard

    mesh = mesh or dist.init_device_mesh("cpu", (dist.get_world_size(),))
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(net, mesh=mesh, **options)


def whole(net: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().full_tensor().reshape(-1) for parameter in net.parameters()])


@case
def fsdp2() -> Outcome:
    net = sharded()
    return {"losses": trained(net, adam(net.parameters())), "weights": whole(net)}


@case
def fsdp2_bf16() -> Outcome:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    net = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    losses = []
    optimizer = sgd(net.parameters())
    for step in range(STEPS):
        x, y = share(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x).float(), y)
        loss.backward()
        optimizer.step()
        losses.append(mean(loss))
    return {"losses": torch.stack(losses), "weights": whole(net)}


@case
def fsdp2_clipped() -> Outcome:
    """The gradients are clipped by their norm over the shards of all ranks."""
    net = sharded()
    optimizer = adam(net.parameters())
    losses = []
    for step in range(STEPS):
        x, y = share(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        losses += [mean(loss), norm.full_tensor()]
    return {"losses": torch.stack(losses), "weights": whole(net)}


@case
def checkpoint() -> Outcome:
    """Trains, saves the shards, and continues with a new model and optimiser that have loaded the shards."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    first = sharded()
    optimizer = adam(first.parameters())
    losses = [trained(first, optimizer)]
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    weights, moments = get_state_dict(first, optimizer)
    dcp.save({"weights": weights, "moments": moments}, checkpoint_id=folder[0])
    second = sharded()
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.zero_()
    again = adam(second.parameters())
    weights, moments = get_state_dict(second, again)
    dcp.load({"weights": weights, "moments": moments}, checkpoint_id=folder[0])
    set_state_dict(second, again, model_state_dict=weights, optim_state_dict=moments)
    saved = whole(first)
    assert torch.equal(saved, whole(second))
    # A program of one process reads the shards of many.
    if dist.get_rank() == 0:
        names = {f"weights.{name}": torch.zeros_like(value) for name, value in model().state_dict().items()}
        dcp.load(names, checkpoint_id=folder[0], no_dist=True)
        assert torch.equal(torch.cat([value.reshape(-1) for value in names.values()]), saved)
    losses.append(trained(second, again))
    return {"losses": torch.cat(losses), "weights": whole(second)}


def continued() -> Outcome:
    """The training of ``checkpoint``, in one process and without a checkpoint."""
    net = model()
    optimizer = adam(net.parameters())
    losses = []
    for step in [*range(STEPS), *range(STEPS)]:
        x, y = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "weights": flat(net)}


# Tensor parallelism and meshes.


def columns_and_rows(net: nn.Sequential, mesh) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(
        net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel(), "6": RowwiseParallel()}
    )


@case
def tensor_parallel() -> Outcome:
    """Every rank has a part of each layer, and the whole batch."""
    net = columns_and_rows(model(), dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = adam(net.parameters())
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "weights": whole(net)}


@case
def sequence_parallel() -> Outcome:
    """Between the layers a rank has its part of the rows: gathers and reduce-scatters, and their backward passes."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    rows = {"input_layouts": Shard(0)}
    net = parallelize_module(
        model(),
        mesh,
        {
            "0": ColwiseParallel(),
            "2": RowwiseParallel(output_layouts=Shard(0)),
            "4": ColwiseParallel(**rows),
            "6": RowwiseParallel(output_layouts=Replicate()),
        },
    )
    optimizer = adam(net.parameters())
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses), "weights": whole(net)}


@case
def two_dimensions() -> Outcome:
    """Half of the ranks share a layer, the halves share the batch: FSDP2 over tensor parallelism (4 ranks)."""
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    net = columns_and_rows(model(), mesh["tp"])
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh["dp"])
    fully_shard(net, mesh=mesh["dp"])
    optimizer = adam(net.parameters())
    losses = []
    for step in range(STEPS):
        x, y = (part.chunk(mesh["dp"].size())[mesh["dp"].get_local_rank()] for part in batch(step))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(mean(loss))
    return {"losses": torch.stack(losses), "weights": whole(net)}


@case
def hybrid_shards() -> Outcome:
    """FSDP2 whose shards are on 2 ranks each, with replicas (4 ranks)."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replica", "shard"))
    net = sharded(mesh)
    return {"losses": trained(net, adam(net.parameters())), "weights": whole(net)}


# Pipelines.


class Transposed(nn.Module):
    """Passes on a view that is not contiguous."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t()


def pipelined(schedule: str, stages_per_rank: int = 1, transposed: bool = False) -> Outcome:
    from torch.distributed import pipelining

    rank, size = dist.get_rank(), dist.get_world_size()
    net = model()
    # Each linear layer with the activation after it, in as many stages as there are: 2 or 4.
    pairs = [net[at : at + 2] for at in range(0, len(net), 2)]
    count = size * stages_per_rank
    each = len(pairs) // count
    parts = [nn.Sequential(*pairs[at * each : (at + 1) * each]) for at in range(count)]
    if transposed:
        # Activations and their gradients are sent as views.
        parts = [nn.Sequential(*[Transposed()] * (at > 0), part, *[Transposed()] * (at < count - 1)) for at, part in enumerate(parts)]
    mine = range(rank, count, size)
    stages = [pipelining.PipelineStage(parts[at], at, count, torch.device("cpu")) for at in mine]
    make = getattr(pipelining, f"Schedule{schedule}")
    run = make(stages[0] if stages_per_rank == 1 else stages, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = sgd([parameter for at in mine for parameter in parts[at].parameters()])
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        parts_of_loss: list[torch.Tensor] = []
        inputs = (x,) if rank == 0 else ()
        target = {"target": y, "losses": parts_of_loss} if rank == size - 1 else {}
        run.step(*inputs, **target)
        optimizer.step()
        total = torch.stack(parts_of_loss).mean().detach() if parts_of_loss else torch.zeros(())
        dist.broadcast(total, size - 1)
        losses.append(total)
    weights = []
    for at, part in enumerate(parts):
        vector = flat(part).clone()
        dist.broadcast(vector, at % size)
        weights.append(vector)
    return {"losses": torch.stack(losses), "weights": torch.cat(weights)}


@case
def pipeline_gpipe() -> Outcome:
    return pipelined("GPipe")


@case
def pipeline_1f1b() -> Outcome:
    return pipelined("1F1B")


@case
def pipeline_gpipe_of_views() -> Outcome:
    return pipelined("GPipe", transposed=True)


@case
def pipeline_1f1b_of_views() -> Outcome:
    return pipelined("1F1B", transposed=True)


@case
def pipeline_interleaved() -> Outcome:
    """Two stages on each of 2 ranks."""
    return pipelined("Interleaved1F1B", 2)


def main() -> int:
    backend, folder, *names = sys.argv[1:]
    if backend == "allfold":
        import allfold.torch  # noqa: F401
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    for name in names or CASES:
        try:
            outcome = CASES[name]()
        except BaseException:
            (Path(folder) / f"{name}.{dist.get_rank()}.error").write_text(traceback.format_exc())
            return 1
        if dist.get_rank() == 0:
            torch.save(outcome, Path(folder) / f"{name}.pt")
    (Path(folder) / f"launch.{dist.get_rank()}").write_text(os.environ.get("TORCHELASTIC_RUN_ID", ""))
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
