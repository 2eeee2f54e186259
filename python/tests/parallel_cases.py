"""DTensor, FSDP and what else PyTorch builds on a process group: small cases on a backend, each compared with a single process.

    python python/tests/parallel_cases.py --backend allfold --ranks 2 [--only NAME[,NAME..]] [--json FILE]

PyTorch's wheel ships the helpers of its DTensor and composable tests, not the cases, so these are cases of our own. A case is a
function of a rank; it raises where something is wrong. `c10d_cases.py --table` makes the table of the files that `--json` writes.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch
import torch.distributed as dist
from torch import nn
from torch_ranks import join, launch

# The imports of the cases take seconds: they are done once, in the process from which the ranks are forked.
multiprocessing.set_forkserver_preload(
    "allfold.torch torch._dynamo torch.distributed.tensor.parallel torch.distributed.fsdp torch.distributed.pipelining "
    "torch.distributed.checkpoint.state_dict torch.distributed._composable.replicate torch.distributed.optim "
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook".split()
)

CASES: dict[str, tuple[Callable, tuple[int, ...]]] = {}


def case(*ranks: int) -> Callable:
    """Registers a case for these numbers of ranks, or for any number where none is given."""

    def kept(function: Callable) -> Callable:
        CASES[function.__name__] = (function, ranks)
        return function

    return kept


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def close(got: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-9) -> None:
    got, wanted = got.detach(), wanted.detach()
    assert got.shape == wanted.shape, f"{tuple(got.shape)}, not {tuple(wanted.shape)}"
    difference = (got.double() - wanted.double()).abs().max().item() if got.numel() else 0.0
    assert difference <= tolerance, f"they differ by {difference}"


def mesh(size: int, *shape: int, names: tuple[str, ...] | None = None):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape or (size,), mesh_dim_names=names)


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4)).to(dtype)


def trained(model: nn.Module, batches: list[torch.Tensor], optimizer=None) -> list[float]:
    """Trains on batches; returns the losses."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in batches:
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def batches(steps: int = 3, rows: int = 12) -> list[torch.Tensor]:
    return [numbers(rows, 6, seed=100 + step) for step in range(steps)]


def own(whole: list[torch.Tensor], rank: int, size: int) -> list[torch.Tensor]:
    return [batch.chunk(size)[rank] for batch in whole]


def like_one_process(model: nn.Module, rank: int, size: int, **named) -> nn.Module:
    """Trains a wrapped copy of ``network()`` on this rank's part, and a plain copy on the whole. Compares the losses; returns the
    plain copy."""
    alone = network()
    wanted = trained(alone, batches())
    got = trained(model, own(batches(), rank, size), **named)
    mean = torch.tensor(got, dtype=torch.float64)
    dist.all_reduce(mean)
    close(mean / size, torch.tensor(wanted, dtype=torch.float64))
    return alone


# DTensor.


@case()
def dtensor_distribute(rank: int, size: int) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    for shape in [(8, 6), (5, 7), (1, 3), (size * 2, size)]:
        whole = numbers(*shape)
        for placement in [Shard(0), Shard(1), Replicate()]:
            # Only rank 0's numbers are distributed.
            made = distribute_tensor(whole if rank == 0 else torch.zeros_like(whole), mesh(size), [placement])
            close(made.full_tensor(), whole)
            if placement == Shard(0):
                pieces = list(whole.chunk(size)) + [whole[:0]] * size
                close(made.to_local(), pieces[rank])


@case()
def dtensor_redistribute(rank: int, size: int) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    for shape in [(8, 6), (5, 7)]:
        whole = numbers(*shape)
        for begin in [Shard(0), Shard(1), Replicate()]:
            for end in [Shard(0), Shard(1), Replicate()]:
                close(distribute_tensor(whole, mesh(size), [begin]).redistribute(placements=[end]).full_tensor(), whole)


@case()
def dtensor_partial(rank: int, size: int) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    whole = sum(numbers(8, 6, seed=each) for each in range(size))
    for kind, wanted in [("sum", whole), ("avg", whole / size)]:
        part = DTensor.from_local(numbers(8, 6, seed=rank), mesh(size), [Partial(kind)])
        for end in [Replicate(), Shard(0), Shard(1)]:
            close(part.redistribute(placements=[end]).full_tensor(), wanted)
    most = torch.stack([numbers(8, 6, seed=each) for each in range(size)]).amax(0)
    part = DTensor.from_local(numbers(8, 6, seed=rank), mesh(size), [Partial("max")])
    close(part.full_tensor(), most)


@case()
def dtensor_matrix_product(rank: int, size: int) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    left, right = numbers(8, 12), numbers(12, 6, seed=1)
    for a in [Shard(0), Shard(1), Replicate()]:
        for b in [Shard(0), Shard(1), Replicate()]:
            product = distribute_tensor(left, mesh(size), [a]) @ distribute_tensor(right, mesh(size), [b])
            close(product.full_tensor(), left @ right)


@case()
def dtensor_operators(rank: int, size: int) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    whole = numbers(8, 12)
    for placement in [Shard(0), Shard(1)]:
        made = distribute_tensor(whole, mesh(size), [placement])
        close((made * 2 + made.exp()).full_tensor(), whole * 2 + whole.exp())
        close(made.sum().full_tensor(), whole.sum())
        close(made.mean(0).full_tensor(), whole.mean(0))
        close(made.amax(1).full_tensor(), whole.amax(1))
        close(made.softmax(1).full_tensor(), whole.softmax(1))
        close(made.t().full_tensor(), whole.t())
        close(nn.functional.layer_norm(made, (12,)).full_tensor(), nn.functional.layer_norm(whole, (12,)))
        close(torch.cat([made, made]).full_tensor(), torch.cat([whole, whole]))
        close(made.norm().full_tensor(), whole.norm())


@case()
def dtensor_gradients(rank: int, size: int) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    weight, data = numbers(12, 6).requires_grad_(), numbers(8, 12, seed=1)
    (data @ weight).pow(2).sum().backward()
    for placement in [Shard(0), Shard(1), Replicate()]:
        made = distribute_tensor(weight.detach(), mesh(size), [placement]).requires_grad_()
        (distribute_tensor(data, mesh(size), [Shard(0)]) @ made).pow(2).sum().backward()
        close(made.grad.full_tensor(), weight.grad)


@case()
def dtensor_random(rank: int, size: int) -> None:
    from torch.distributed import tensor as dt

    torch.manual_seed(0)
    made = dt.randn((8, 6), device_mesh=mesh(size), placements=[dt.Shard(0)]).full_tensor()
    gathered = [torch.empty_like(made) for _ in range(size)]
    dist.all_gather(gathered, made)
    for each in gathered:
        close(each, made, 0.0)
    close(dt.full((5, 3), 2.5, device_mesh=mesh(size), placements=[dt.Shard(0)]).full_tensor(), torch.full((5, 3), 2.5))


@case(4)
def dtensor_two_dimensions(rank: int, size: int) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    both = mesh(size, 2, 2, names=("dp", "tp"))
    whole = numbers(7, 9)
    kinds = [Shard(0), Shard(1), Replicate()]
    for begin in [[a, b] for a in kinds for b in kinds]:
        made = distribute_tensor(whole, both, begin)
        for end in [[Replicate(), Replicate()], [Shard(0), Shard(1)]]:
            close(made.redistribute(placements=end).full_tensor(), whole)
    assert both["tp"].size() == 2 and both["dp"].get_local_rank() == rank // 2


# Tensor parallelism.


@case(2, 4)
def tensor_parallel(rank: int, size: int) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    alone, model = network(), network()
    parallelize_module(model, mesh(size), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for got, wanted in zip(trained(model, batches()), trained(alone, batches())):
        assert abs(got - wanted) < 1e-9
    close(model[0].weight.full_tensor(), alone[0].weight)


@case(2, 4)
def sequence_parallel(rank: int, size: int) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.up = nn.Linear(8, 16)
            self.down = nn.Linear(16, 8)

        def forward(self, data):
            return self.down(torch.tanh(self.up(self.norm(data))))

    torch.manual_seed(0)
    alone = Block().double()
    model = copy.deepcopy(alone)
    plan = {
        "norm": tp.SequenceParallel(),
        "up": tp.ColwiseParallel(input_layouts=Shard(1)),
        "down": tp.RowwiseParallel(output_layouts=Replicate()),
    }
    tp.parallelize_module(model, mesh(size), plan)
    data = numbers(2, 8, 8)
    mine = data.chunk(size, dim=1)[rank]
    close(model(mine), alone(data))
    model(mine).sum().backward()
    alone(data).sum().backward()
    close(model.up.weight.grad.full_tensor(), alone.up.weight.grad)


@case(2, 4)
def embedding_and_loss_parallel(rank: int, size: int) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    torch.manual_seed(0)
    alone = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16)).double()
    model = copy.deepcopy(alone)
    plan = {
        "0": tp.RowwiseParallel(input_layouts=Replicate()),
        "1": tp.ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    tp.parallelize_module(model, mesh(size), plan)
    words = torch.arange(10) * 3 % 16
    with tp.loss_parallel():
        loss = nn.functional.cross_entropy(model(words), words)
        loss.backward()
    wanted = nn.functional.cross_entropy(alone(words), words)
    wanted.backward()
    close(loss.full_tensor() if hasattr(loss, "full_tensor") else loss, wanted)
    close(model[0].weight.grad.full_tensor(), alone[0].weight.grad)


# Data parallelism.


@case()
def ddp(rank: int, size: int) -> None:
    model = nn.parallel.DistributedDataParallel(network(seed=rank))  # DDP takes rank 0's parameters
    alone = like_one_process(model, rank, size)
    close(model.module[0].weight, alone[0].weight)


@case()
def ddp_variants(rank: int, size: int) -> None:
    for named in [{"static_graph": True}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"bucket_cap_mb": 1e-4}]:
        like_one_process(nn.parallel.DistributedDataParallel(network(), **named), rank, size)


@case()
def ddp_hooks(rank: int, size: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    for hook in (default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook, powerSGD_hook.powerSGD_hook):
        model = nn.parallel.DistributedDataParallel(network(dtype=torch.float32))
        state = None
        if hook is powerSGD_hook.powerSGD_hook:
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, hook)
        alone = network(dtype=torch.float32)
        wanted = trained(alone, [batch.float() for batch in batches()])
        got = trained(model, [batch.float() for batch in own(batches(), rank, size)])
        mean = torch.tensor(got)
        dist.all_reduce(mean)
        close(mean / size, torch.tensor(wanted), 0.05)


@case()
def ddp_no_sync(rank: int, size: int) -> None:
    model = nn.parallel.DistributedDataParallel(network())
    first, second = own(batches(2), rank, size)
    with model.no_sync():
        model(first).pow(2).mean().backward()
    model(second).pow(2).mean().backward()
    alone = network()
    for batch in batches(2):
        alone(batch).pow(2).mean().backward()
    close(model.module[0].weight.grad, alone[0].weight.grad)


@case()
def ddp_join(rank: int, size: int) -> None:
    model = nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(2 + rank):
            optimizer.zero_grad()
            model(numbers(4, 6, seed=step)).pow(2).mean().backward()
            optimizer.step()
    weights = [torch.empty_like(model.module[0].weight) for _ in range(size)]
    dist.all_gather(weights, model.module[0].weight.detach())
    for each in weights:
        close(each, weights[0], 0.0)


@case()
def zero_redundancy(rank: int, size: int) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    like_one_process(model, rank, size, optimizer=optimizer)
    optimizer.consolidate_state_dict(to=0)


@case()
def composable_replicate(rank: int, size: int) -> None:
    from torch.distributed._composable.replicate import replicate

    like_one_process(replicate(network()), rank, size)


@case()
def fully_sharded(rank: int, size: int) -> None:
    from torch.distributed.fsdp import fully_shard

    for reshard in (True, False):
        model = network()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, reshard_after_forward=reshard)
        fully_shard(model)
        alone = like_one_process(model, rank, size)
        for name, parameter in model.named_parameters():
            close(parameter.full_tensor(), alone.get_parameter(name))


@case()
def fully_sharded_clip_and_state(rank: int, size: int) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    model, alone = fully_shard(network()), network()
    model(own(batches(), rank, size)[0]).pow(2).mean().backward()
    alone(batches()[0]).pow(2).mean().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    close(norm.full_tensor(), nn.utils.clip_grad_norm_(alone.parameters(), 0.01))
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        close(state["0.weight"], network()[0].weight)
    whole = network(seed=5).state_dict() if rank == 0 else {}
    set_model_state_dict(model, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    close(model[0].weight.full_tensor(), network(seed=5)[0].weight)


@case()
def fully_sharded_mixed_precision(rank: int, size: int) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = fully_shard(network(dtype=torch.float32), mp_policy=policy)
    losses = trained(model, [batch.float() for batch in own(batches(), rank, size)])
    mean = torch.tensor(losses)
    dist.all_reduce(mean)
    close(mean / size, torch.tensor(trained(network(), batches())), 0.05)


@case(4)
def hybrid_sharded(rank: int, size: int) -> None:
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(network(), mesh=mesh(size, 2, 2, names=("replicate", "shard")))
    like_one_process(model, rank, size)


@case(4)
def fully_sharded_and_tensor_parallel(rank: int, size: int) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    both = mesh(size, 2, 2, names=("dp", "tp"))
    model = network()
    parallelize_module(model, both["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=both["dp"])
    alone = network()
    wanted, got = trained(alone, batches()), trained(model, own(batches(), rank // 2, 2))
    mean = torch.tensor(got, dtype=torch.float64)
    dist.all_reduce(mean)
    close(mean / size, torch.tensor(wanted, dtype=torch.float64))


@case()
def fsdp_wrapper(rank: int, size: int) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        model = FullyShardedDataParallel(network(), sharding_strategy=strategy, device_id=torch.device("cpu"))
        like_one_process(model, rank, size)


@case()
def activation_checkpoint(rank: int, size: int) -> None:
    from torch.distributed._composable import checkpoint
    from torch.distributed.fsdp import fully_shard

    model = network()
    checkpoint(model[2])
    like_one_process(fully_shard(model), rank, size)


# Pipelines and checkpoints.


def pipeline(schedule: str, rank: int, size: int) -> None:
    from torch.distributed import pipelining

    layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(size)]
    for at, layer in enumerate(layers):
        torch.manual_seed(at)
        nn.init.normal_(layer[0].weight)
        nn.init.zeros_(layer[0].bias)
        layer.double()
    alone = nn.Sequential(*copy.deepcopy(layers))
    data, loss = numbers(8, 6), lambda output, target: (output - target).pow(2).mean()
    stage = pipelining.PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    made = getattr(pipelining, schedule)(stage, n_microbatches=4, loss_fn=loss)
    losses: list[torch.Tensor] = []
    target = numbers(8, 6, seed=1)
    if rank == 0:
        made.step(data)
    elif rank == size - 1:
        made.step(target=target, losses=losses)
    else:
        made.step()
    wanted = loss(alone(data), target)
    wanted.backward()
    if losses:
        close(torch.stack(losses).mean(), wanted)
    close(layers[rank][0].weight.grad, alone[rank][0].weight.grad)


@case(2, 3, 4)
def pipeline_gpipe(rank: int, size: int) -> None:
    pipeline("ScheduleGPipe", rank, size)


@case(2, 3, 4)
def pipeline_1f1b(rank: int, size: int) -> None:
    pipeline("Schedule1F1B", rank, size)


@case()
def distributed_checkpoint(rank: int, size: int) -> None:
    import tempfile

    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    whole = numbers(8, 6)
    dcp.save({"weight": distribute_tensor(whole, mesh(size), [Shard(0)]), "step": 7}, checkpoint_id=folder[0])
    for placement in (Shard(1), Replicate()):
        state = {"weight": distribute_tensor(torch.zeros_like(whole), mesh(size), [placement]), "step": 0}
        dcp.load(state, checkpoint_id=folder[0])
        close(state["weight"].full_tensor(), whole)
        assert state["step"] == 7


def run_case(rank: int, size: int, store: str, name: str) -> None:
    join(rank, size, store, 60.0)
    CASES[name][0](rank, size)
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="allfold", choices=["allfold", "gloo"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="names of cases, with commas between them")
    parser.add_argument("--json", help="a file to which a line for each case is added")
    options = parser.parse_args()
    wanted = [name for name in options.only.split(",") if name] or list(CASES)
    unknown = set(wanted) - set(CASES)
    if unknown:
        raise SystemExit(f"there are no cases {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name in wanted:
        ranks = CASES[name][1]
        begun, why = time.monotonic(), ""
        if ranks and options.ranks not in ranks:
            became = f"skipped: it is for {' or '.join(map(str, ranks))} ranks"
        else:
            environment = {"BACKEND": options.backend}
            outcomes = launch(options.ranks, run_case, name, environment=environment, limit=120.0)
            bad = [outcome for outcome in outcomes if outcome.error or not outcome.ended]
            became = "failed" if bad else "passed"
            why = str(bad[0]) if bad else ""
        counts[became.split(":")[0]] += 1
        row = {"backend": options.backend, "ranks": options.ranks, "case": name, "became": became}
        row["seconds"] = round(time.monotonic() - begun, 1)
        print(json.dumps(row), why, flush=True)
        if options.json:
            with open(options.json, "a") as file:
                file.write(json.dumps(row) + "\n")
    print(", ".join(f"{word} {count}" for word, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    # The ranks import the cases by this name: in them `__main__` is another module.
    import parallel_cases

    sys.exit(parallel_cases.main())
