"""Collectives of PyTorch on the backends gloo and allfold, processes of one host, in one run, in turn.

    python python/bench/beside_gloo.py [--ranks 2,4] [--sizes 4K,64K,1M,16M,64M] [--seconds 0.5] [--only NAME[,NAME..]]

For every collective and size: a barrier and a call on gloo, a barrier and the same call on allfold with plain tensors, and with
registered ones (``allfold.torch.empty``), repeated for ``--seconds``; the table has the median of the slowest rank's
times. A size is the bytes of the larger tensor of a rank. Results of both backends are compared. With 2 among the ranks, the last
lines are what a call through Python costs: an all_reduce of 4 bytes in a group of one rank.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

UNITS = {"K": 1 << 10, "M": 1 << 20}
OPERATIONS = ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "all_to_all_single"]
ARMS = ["gloo", "plain", "registered"]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--sizes", default="4K,64K,1M,16M,64M")
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each column, for each collective and size")
    parser.add_argument("--only", default=",".join(OPERATIONS))
    parser.add_argument("--calls", type=int, default=400, help="the most calls of each column, for each collective and size")
    return parser.parse_args()


def bytes_of(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def start(ranks: int, *arguments: str) -> list[dict]:
    """Starts the ranks of a part of a benchmark; returns the rows that rank 0 prints."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    world = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, sys.argv[0], *sys.argv[1:], *arguments]
    processes = [
        subprocess.Popen(command, env={**world, "RANK": str(rank)}, stdout=None if rank else subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    rows = [json.loads(line) for line in processes[0].stdout]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"a rank failed: exit codes {codes}")
    return rows


def call_of(name: str, size: int, ranks: int, group, empty: Callable) -> tuple[Callable, Callable]:
    """A function that calls a collective on tensors of its own, and one that fills them, calls it and sums up the result."""
    import torch
    import torch.distributed as dist

    count = size // 4 // ranks * ranks
    whole, part = empty(count), empty(count // ranks)
    other = empty(count) if name == "all_to_all_single" else None
    call, source, result = {
        "all_reduce": (lambda: dist.all_reduce(whole, group=group), whole, whole),
        "broadcast": (lambda: dist.broadcast(whole, 0, group=group), whole, whole),
        "all_gather_into_tensor": (lambda: dist.all_gather_into_tensor(whole, part, group=group), part, whole),
        "reduce_scatter_tensor": (lambda: dist.reduce_scatter_tensor(part, whole, group=group), whole, part),
        "all_to_all_single": (lambda: dist.all_to_all_single(other, whole, group=group), whole, other),
    }[name]

    def once() -> torch.Tensor:
        numbers = torch.Generator().manual_seed(dist.get_rank())
        source.copy_(torch.randint(-8, 8, source.shape, generator=numbers))
        call()
        total = result.sum(dtype=torch.float64).item()
        # Sums of sums must not overflow.
        source.zero_()
        return total

    return call, once


def measure(options: argparse.Namespace) -> None:
    """What each rank does."""
    import torch
    import torch.distributed as dist

    import allfold.torch

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks, first = dist.get_world_size(), dist.get_rank() == 0
    fast = dist.new_group(backend="allfold")

    for name in options.only.split(","):
        for size in map(bytes_of, options.sizes.split(",")):
            groups = {"gloo": dist.group.WORLD, "plain": fast, "registered": fast}
            calls, sums = {}, {}
            for arm in ARMS:
                empty = (lambda count: allfold.torch.empty(count, group=fast)) if arm == "registered" else torch.zeros
                calls[arm], once = call_of(name, size, ranks, groups[arm], empty)
                sums[arm] = once()
            if len(set(sums.values())) > 1:
                raise SystemExit(f"{name} of {size} bytes has other results on other backends: {sums}")
            times: dict[str, list[float]] = {arm: [] for arm in ARMS}
            begun, late = time.perf_counter(), torch.zeros(1)
            while len(times["gloo"]) < options.calls and not late.item():
                for arm in ARMS:
                    dist.barrier(group=fast)
                    start_ = time.perf_counter()
                    calls[arm]()
                    times[arm].append(time.perf_counter() - start_)
                late[0] = float(time.perf_counter() - begun > 3 * options.seconds and len(times["gloo"]) >= 7)
                dist.all_reduce(late, op=dist.ReduceOp.MAX, group=fast)
            slowest = torch.tensor([times[arm][2:] for arm in ARMS], dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=fast)
            if first:
                row = {arm: statistics.median(slowest[at].tolist()) * 1e6 for at, arm in enumerate(ARMS)}
                calls_made = slowest.shape[1]
                print(json.dumps({"name": name, "ranks": ranks, "bytes": size, "calls": calls_made, **row}), flush=True)
    dist.barrier(group=fast)
    if ranks == 2:
        layer(first)
    dist.destroy_process_group()


def layer(first: bool) -> None:
    """Measures what a call through Python costs."""
    import torch
    import torch.distributed as dist

    alone = [dist.new_group([rank], backend="allfold") for rank in range(dist.get_world_size())][dist.get_rank()]
    if not first:
        return
    x = torch.zeros(1)
    place = (x.data_ptr(), 1, "f32")
    now = dist.AllreduceOptions()
    now.asyncOp = False
    ways = {
        "dist.all_reduce": lambda: dist.all_reduce(x, group=alone),
        "dist.all_reduce, async_op, wait": lambda: dist.all_reduce(x, group=alone, async_op=True).wait(),
        "the process group beneath": lambda: alone.allreduce([x], now),
        "the native call beneath": lambda: alone.native.run("all_reduce", (0, 0, "u8", None), place, "sum", 0, 0, 300.0),
    }
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(60):
        for name, call in ways.items():
            start_ = time.perf_counter()
            for _ in range(500):
                call()
            rounds[name].append((time.perf_counter() - start_) / 500 * 1e6)
    for name, times in rounds.items():
        print(json.dumps({"layer": name, "us": statistics.median(times), "fastest": min(times)}), flush=True)


def size_of(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def main() -> None:
    options = parsed()
    if "RANK" in os.environ:
        return measure(options)
    rows = [row for ranks in options.ranks.split(",") for row in start(int(ranks))]
    print("| collective | ranks | size | calls | gloo, us | plain, us | registered, us | gloo / plain | gloo / registered |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for row in (row for row in rows if "name" in row):
        gloo, plain, registered = (row[arm] for arm in ARMS)
        print(
            f"| {row['name']} | {row['ranks']} | {size_of(row['bytes'])} | {row['calls']} | {gloo:,.0f} | {plain:,.0f} | "
            f"{registered:,.0f} | {gloo / plain:.1f} | {gloo / registered:.1f} |"
        )
    print("\n| a call of 4 bytes in a group of one rank | median, us | fastest, us |\n|---|--:|--:|")
    for row in (row for row in rows if "layer" in row):
        print(f"| {row['layer']} | {row['us']:.1f} | {row['fastest']:.1f} |")


if __name__ == "__main__":
    main()
