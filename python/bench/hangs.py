"""Real jobs of PyTorch with Gloo that hang under a known fault, judged by ``allfold triage`` and by PyTorch's own analyser.

    python python/bench/hangs.py CASES SEED [ALLFOLD]

Each case forks 3 to 5 ranks that call collectives of the world and of two groups, in steps. The fault changes one rank's program. Once no
rank moves, every rank that can writes its flight recorder's dump. Printed is a line for each case, and how often each named the rank.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

FAULTS = ("healthy", "stopped", "died", "elsewhere", "other_operation", "other_size", "left_out", "late_start")
STEPS = 8


def _program(rank: int, size: int, fault: str, at: int) -> None:
    world, even = dist.group.WORLD, dist.new_group(list(range(0, size, 2)), group_desc="even")
    for step in range(STEPS if fault != "healthy" else 100000):
        bad = fault if step == at else ""
        if bad == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif bad == "died":
            os.kill(os.getpid(), signal.SIGKILL)
        elif bad == "elsewhere":
            threading.Event().wait()
        value = torch.ones(100 if bad != "other_size" else 50)
        if bad != "left_out":
            if bad == "other_operation":
                dist.all_gather([torch.empty(100) for _ in range(size)], value, group=world)
            else:
                dist.all_reduce(value, group=world)
        if rank % 2 == 0:
            dist.all_reduce(torch.ones(30), group=even)
        dist.broadcast(torch.ones(10), 0, group=world)
        if fault == "healthy":
            time.sleep(0.02)


def _rank(rank: int, size: int, store: str, folder: str, fault: str, at: int, culprit: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=size, init_method=f"file://{store}")

    def dump() -> None:
        while not os.path.exists(f"{folder}/now"):
            time.sleep(0.05)
        with open(f"{folder}/.{rank}", "wb") as file:
            file.write(_dump_fr_trace(backend="gloo"))
        os.rename(f"{folder}/.{rank}", f"{folder}/dumps/nccl_trace_rank_{rank}")

    threading.Thread(target=dump, daemon=True).start()
    with contextlib.suppress(RuntimeError):
        _program(rank, size, fault if rank == culprit or fault == "healthy" else "", at)
    threading.Event().wait()


def _case(folder: str, size: int, fault: str, at: int, culprit: int) -> None:
    os.mkdir(f"{folder}/dumps")
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            if fault == "late_start" and rank == culprit:
                at = 0
                fault = "elsewhere"
            _rank(rank, size, f"{folder}/store", folder, fault, at, culprit)
            os._exit(0)
        children.append(child)
    time.sleep(12)
    open(f"{folder}/now", "w").close()
    expected = size - (fault in ("stopped", "died"))
    until = time.monotonic() + 20
    while len(os.listdir(f"{folder}/dumps")) < expected and time.monotonic() < until:
        time.sleep(0.1)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _analyser(folder: str) -> str:
    """What PyTorch's analyser prints."""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder, "-p", "nccl_trace_rank_", "--allow-incomplete-ranks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return (done.stdout + done.stderr).strip().splitlines()[-1:][0] if done.stdout + done.stderr else ""


def main() -> None:
    cases, seed = int(sys.argv[1]), int(sys.argv[2])
    allfold = sys.argv[3] if len(sys.argv) > 3 else "allfold"
    draw, right = random.Random(seed), 0
    for number in range(cases):
        fault, size = FAULTS[number % len(FAULTS)], draw.randint(3, 5)
        culprit, at = draw.randrange(size), draw.randint(3, STEPS - 2)
        with tempfile.TemporaryDirectory() as folder:
            _case(folder, size, fault, at, culprit)
            done = subprocess.run([allfold, "triage", f"{folder}/dumps", "--ranks", str(size), "--json", "-"], capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"causes": [], "why": done.stderr, "hung": "?"}
            cause = found["causes"][0] if found["causes"] else {"kind": "none", "ranks": [], "said": found["why"]}
            well = found["hung"] == "no" if fault == "healthy" else cause["ranks"] == [culprit]
            right += well
            print(f"{number} {fault} rank {culprit} of {size}: {'right' if well else 'WRONG'}: {cause['kind']} {cause['said']}")
            print(f"  PyTorch's analyser: {_analyser(f'{folder}/dumps')}", flush=True)
    print(f"rank named first, or called healthy: {right} of {cases}")


if __name__ == "__main__":
    main()
