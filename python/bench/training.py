"""Training on the backends gloo and allfold, processes of one host and one thread, in one run, step by step in turn.

    python python/bench/training.py [--only ddp-gpt,ddp-resnet18,fsdp2-gpt] [--steps 40]

Both backends train the same model from the same weights on the same numbers: a step on one, a step on the other, and a step in which
nothing is sent (a hook of DDP; for FSDP2 PyTorch's fake backend), than which no backend can be faster. The table has the median of the
slowest rank's steps, and the losses of the last step, which must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

import beside_gloo

CASES = {"ddp-gpt": 2, "ddp-resnet18": 2, "fsdp2-gpt": 4}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--steps", type=int, default=40, help="steps of the GPT; ResNet-18 makes a quarter as many")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args()


def models():
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
            self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)])
            self.short = nn.Sequential()
            if stride != 1 or inside != outside:
                self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

        def forward(self, x):
            y = functional.relu(self.norms[0](self.first(x)))
            return functional.relu(self.norms[1](self.second(y)) + self.short(x))

    class ResNet18(nn.Module):
        """For CIFAR: 3 x 3 stem without pooling, 11.17 million parameters."""

        def __init__(self) -> None:
            super().__init__()
            layers, inside = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
            for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
                layers += [Block(inside, outside, stride), Block(outside, outside, 1)]
                inside = outside
            self.layers, self.head = nn.Sequential(*layers), nn.Linear(512, 10)

        def forward(self, x):
            return self.head(self.layers(x).mean((2, 3)))

    class Layer(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, width = x.shape
            parts = self.qkv(self.norms[0](x)).split(width, 2)
            q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(functional.gelu(self.up(self.norms[1](x))))

    class Gpt(nn.Module):
        """4 layers, width 128, 4 heads, 128 tokens, vocabulary 1024: 1.07 million parameters."""

        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(1024, 128), nn.Embedding(128, 128)
            self.layers = nn.Sequential(*[Layer(128, 4) for _ in range(4)])
            self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 1024, bias=False)

        def forward(self, tokens):
            x = self.tokens(tokens) + self.places(torch.arange(128))
            return self.head(self.norm(self.layers(x))).flatten(0, 1)

    return ResNet18, Gpt


def unsent(_, bucket):
    """A hook of DDP that leaves every rank its own gradients."""
    import torch

    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def trainer(case: str, group):
    """One step of a case on a group, as a function that returns the loss."""
    import torch
    import torch.distributed as dist
    from torch import nn

    resnet, gpt = models()
    torch.manual_seed(0)
    numbers = torch.Generator().manual_seed(dist.get_rank())
    if case == "ddp-resnet18":
        net = resnet()
        x = torch.randn(32, 3, 32, 32, generator=numbers)
        y = torch.randint(0, 10, (32,), generator=numbers)
    else:
        net = gpt()
        x = torch.randint(0, 1024, (8, 128), generator=numbers)
        y = torch.randint(0, 1024, (8 * 128,), generator=numbers)
    if case.startswith("ddp"):
        # DDP takes no results of the fake backend: a hook that sends nothing stands for it.
        silent = dist.get_backend(group) == "fake"
        net = nn.parallel.DistributedDataParallel(net, process_group=None if silent else group)
        if silent:
            net.register_comm_hook(None, unsent)
    else:
        from torch.distributed.fsdp import fully_shard

        mesh = dist.DeviceMesh.from_group(group, "cpu")
        for layer in net.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
    if case == "ddp-resnet18":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def measure(options: argparse.Namespace) -> None:
    """What each rank does."""
    import torch
    import torch.distributed as dist

    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    import allfold.torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    fast = dist.new_group(backend="allfold")
    groups = {"gloo": dist.group.WORLD, "allfold": fast, "nothing": dist.new_group(backend="fake")}
    steps = {name: trainer(options.case, group) for name, group in groups.items()}
    count = options.steps if "gpt" in options.case else max(options.steps // 4, 2)
    times: dict[str, list[float]] = {name: [] for name in steps}
    losses = {}
    for at in range(count + 2):
        # Each is first in turn, so that none always follows another's work.
        names = list(steps)
        for name in names[at % 3 :] + names[: at % 3]:
            dist.barrier(group=fast)
            begun = time.perf_counter()
            losses[name] = steps[name]()
            times[name].append(time.perf_counter() - begun)
    slowest = torch.tensor([times[name][2:] for name in steps], dtype=torch.float64)
    last = torch.stack([losses[name] for name in steps])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    dist.all_reduce(last)
    last /= dist.get_world_size()
    if dist.get_rank() == 0:
        row = {name: statistics.median(slowest[at].tolist()) * 1e3 for at, name in enumerate(steps)}
        losses_ = [value.item() for value in last]
        print(json.dumps({"case": options.case, "steps": count, **row, "losses": losses_}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    options = parsed()
    if "RANK" in os.environ:
        return measure(options)
    rows = [row for case in options.only.split(",") for row in beside_gloo.start(CASES[case], "--case", case)]
    print("| training | ranks | steps | gloo, ms | allfold, ms | sent nothing, ms | allfold / gloo | nothing / gloo | loss, gloo | loss, allfold |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        theirs, ours, _ = row["losses"]
        print(
            f"| {row['case']} | {CASES[row['case']]} | {row['steps']} | {row['gloo']:.1f} | {row['allfold']:.1f} | "
            f"{row['nothing']:.1f} | {row['allfold'] / row['gloo']:.2f} | {row['nothing'] / row['gloo']:.2f} | {theirs:.6f} | {ours:.6f} |"
        )
        if abs(theirs - ours) > 1e-5 * abs(theirs):
            raise SystemExit(f"{row['case']}: the losses differ")


if __name__ == "__main__":
    main()
