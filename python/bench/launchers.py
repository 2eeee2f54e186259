"""DDP of a small network on more ranks than cores, started by each launcher in turn: the threads of a rank, and the time of its steps.

    python python/bench/launchers.py [RANKS [ROUNDS]]

Prints the median seconds of rank 0 for each launcher, and the ratio to torchrun with Gloo. OMP_NUM_THREADS is left to the launchers.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

STEPS = 30


def train(backend: str) -> str:
    """What every rank does. Returns the number of its threads, and its seconds."""
    import torch
    import torch.distributed as dist
    from torch import nn

    import allfold.torch  # noqa: F401

    dist.init_process_group(backend)
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4)]
    net = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 8 * 8, 10)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    begun = time.perf_counter()
    for step in range(STEPS + 3):
        if step == 3:
            dist.barrier()
            begun = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    seconds = time.perf_counter() - begun
    dist.destroy_process_group()
    return f"{torch.get_num_threads()} {seconds}"


def command(launcher: str, ranks: int) -> list[str]:
    rank = [os.path.abspath(__file__), "rank", "gloo" if launcher == "torchrun, Gloo" else "allfold"]
    if launcher == "allfold launch":
        return [sys.executable, "-m", "allfold", "launch", "-n", str(ranks), "--", sys.executable, *rank]
    if launcher == "allfold.run":
        return [sys.executable, rank[0], "run", str(ranks)]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *rank]


def main(ranks: int = 4, rounds: int = 5) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    launchers = ["allfold launch", "allfold.run", "torchrun, allfold", "torchrun, Gloo"]
    seconds: dict[str, list[float]] = {launcher: [] for launcher in launchers}
    threads = {}
    for _ in range(rounds):
        for launcher in launchers:
            done = subprocess.run(command(launcher, ranks), env=environment, capture_output=True, text=True, check=True)
            words = next(line for line in done.stdout.splitlines() if "outcome of rank 0:" in line).split()
            threads[launcher] = words[-2]
            seconds[launcher].append(float(words[-1]))
    theirs = statistics.median(seconds["torchrun, Gloo"])
    print("| launcher | threads of a rank | seconds | times torchrun's with Gloo |\n|---|---|---|---|")
    for launcher, found in seconds.items():
        median = statistics.median(found)
        print(f"| {launcher} | {threads[launcher]} | {median:.2f} | {median / theirs:.2f} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        outcome = train(sys.argv[2])
        if os.environ["RANK"] == "0":
            print("outcome of rank 0:", outcome, flush=True)
    elif sys.argv[1:2] == ["run"]:
        import allfold

        print("outcome of rank 0:", allfold.run(int(sys.argv[2]), train, "allfold")[0])
    else:
        main(*map(int, sys.argv[1:]))
