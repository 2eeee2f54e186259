"""Random programs of sends and receives of views: Allfold's results are Gloo's on contiguous copies.

    target/python/bin/python python/tests/message_programs.py [SEED [COUNT]]

Runs COUNT programs (1,000) from SEED (0) on, on three ranks, and prints the programs whose results differ from Gloo's.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch
import torch.distributed as dist
from torch_ranks import join, launch, results
from view_calls import FORMS, OF_FLOATS, POISON, Maker

RANKS = 3
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
PATHS = {"shared memory": {}, "tcp": {"ALLFOLD_SHARED_MEMORY": "off"}, "gloo": {"BACKEND": "gloo"}}


def messages(drawn: random.Random) -> list[tuple[int, int, int, int, Maker, Maker]]:
    """The messages of one step, the same on every rank: source, target, tag, seed, and the makers of both ends' tensors."""
    step = []
    for _ in range(drawn.randint(1, 6)):
        source, target = drawn.sample(range(RANKS), 2)
        dtype, width = drawn.choice(TYPES), drawn.choice([1, 2, 5, 40, 900])
        forms = [drawn.choice([form for form in FORMS if form not in OF_FLOATS or dtype is torch.float32]) for _ in range(2)]
        given, taken = (Maker(form, dtype, 2, width) for form in forms)
        step.append((source, target, drawn.randint(0, 2), drawn.randrange(1000), given, taken))
    return step


def copied(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def program(seed: int, contiguous: bool) -> str:
    """Runs one program; returns a hash of what this rank received."""
    drawn, rank, found = random.Random(seed), dist.get_rank(), hashlib.sha256()
    for _ in range(drawn.randint(1, 4)):
        step, how = messages(drawn), drawn.choice(["batch", "isend", "send"])
        outputs, receives, sends = [], [], []
        for source, target, tag, number, given, taken in step:
            if rank == target:
                outputs.append(torch.zeros(taken.shape, dtype=taken.dtype) if contiguous else taken.out())
                receives.append((outputs[-1], source, tag))
            if rank == source:
                tensor = given(number)
                sends.append((copied(tensor) if contiguous else tensor, target, tag))
        if how == "batch":
            batch = [dist.P2POp(dist.irecv, tensor, source, tag=tag) for tensor, source, tag in receives]
            batch += [dist.P2POp(dist.isend, tensor, target, tag=tag) for tensor, target, tag in sends]
            works = dist.batch_isend_irecv(batch) if batch else []
            batch.clear()
        else:
            works = [dist.irecv(tensor, source, tag=tag) for tensor, source, tag in receives]
            for tensor, target, tag in sends:
                if how == "isend":
                    works.append(dist.isend(tensor, target, tag=tag))
                else:
                    dist.send(tensor, target, tag=tag)
                    with torch.no_grad():
                        tensor.fill_(POISON)
        tensor = None
        # The sources are freed, and their memory is filled.
        sends = [torch.full(tensor.shape, POISON, dtype=torch.int32).to(tensor.dtype) for tensor, _, _ in sends for _ in range(4)]
        for work in works:
            work.wait()
        for output in outputs:
            found.update(copied(output).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def programs(rank: int, size: int, store: str, seed: int, count: int) -> list[str]:
    join(rank, size, store, 60.0)
    contiguous = dist.get_backend() == "gloo"
    found = []
    for each in range(seed, seed + count):
        found.append(program(each, contiguous))
        dist.barrier()
    dist.destroy_process_group()
    return found


def compared(seed: int, count: int) -> dict[str, tuple[float, list[int]]]:
    """For each path of Allfold's messages, its seconds, and the seeds of the programs whose results are not Gloo's."""
    found, seconds = {}, {}
    for path, environment in PATHS.items():
        begun = time.monotonic()
        found[path] = results(launch(RANKS, programs, seed, count, limit=60.0 + 2 * count, environment=environment))
        seconds[path] = time.monotonic() - begun
    theirs = list(zip(*found["gloo"], strict=True))
    assert len(theirs) == count and len(set(theirs)) > count / 2, "Gloo's results do not tell the programs apart"
    other = {path: [seed + at for at, mine in enumerate(zip(*found[path], strict=True)) if mine != theirs[at]] for path in PATHS}
    return {path: (seconds[path], other[path]) for path in PATHS}


if __name__ == "__main__":
    seed, count = (int(word) for word in [*sys.argv[1:], *["0", "1000"][len(sys.argv) - 1 :]])
    print("| path | programs | not as Gloo | seconds |\n|---|---|---|---|")
    wrong = False
    for path, (seconds, other) in compared(seed, count).items():
        wrong = wrong or bool(other)
        print(f"| {path} | {count} | {len(other)}{' ' if other else ''}{', '.join(map(str, other[:5]))} | {seconds:.0f} |")
    sys.exit(wrong)
