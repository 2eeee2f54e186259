"""Real jobs of PyTorch that hang under a known fault, judged by ``allfold triage`` and by PyTorch's own analyser.

    python python/bench/hangs.py CASES SEED FOLDER [ALLFOLD]

Each case forks 2 to 8 ranks that train a small network (``JOBS``), over Gloo, and make collectives of their own. One rank has
the fault. Once no rank moves, every rank that can writes its dump. FOLDER gets a folder for each case, which ``allfold hangs --from FOLDER``
judges: the dumps, a launcher's log, and the truth. Printed are its table, and how often PyTorch's analyser names the rank in the same dumps.

Two faults of ``allfold hangs`` are missing. A rank with another list of a group's ranks hangs while the group is made, of which recorders
know nothing; and cutting a network needs rights that a test does not have.
"""

from __future__ import annotations

import ast
import contextlib
import json
import logging
import mmap
import os
import random
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from threading import Event, Thread

import torch
import torch.distributed as dist
import torch.distributed.flight_recorder.fr_trace as fr_trace
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

HEALTHY = ("healthy", "slow_start", "slow")
EVENTS = ("died", "silent", "elsewhere", "failed", "late_start", "short_timeout", "lost_node")
CALLS = ("other_operation", "other_size", "other_type", "left_out", "extra", "order", "missing_send", "missing_receive")
# Those of a short run first.
FAULTS = tuple(dict.fromkeys(("healthy", "left_out", "elsewhere", "other_size", "silent", "died", *HEALTHY, *EVENTS, *CALLS)))
JOBS = ("ddp", "fsdp", "tensor", "pipeline", "groups")
AT_ONCE = 4
STEPS = 12
# Seconds: of the time-out, and by which a rank comes too late.
TIMEOUT, LATE = 8, 11


class Program:
    """What a rank does: ``step`` is its calls in a step, each (operation, group, elements, type, peer)."""

    def __init__(self, job: str, rank: int, size: int, draw: random.Random) -> None:
        self.rank, self.groups = rank, {"world": dist.group.WORLD}
        self.model, self.step = None, [("model", "world", 0, torch.float32, 0)] if job in ("ddp", "fsdp", "tensor") else []
        layers = [layer for _ in range(draw.randint(2, 4)) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
        count = draw.randrange(10, 1000)

        def call(name: str, group: str = "world", more: int = 0, peer: int = 0) -> None:
            self.step.append((name, group, count + more, torch.float32, peer))

        if job == "ddp":
            self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)
        elif job == "fsdp":
            mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("shard",))
            for layer in layers[::2]:
                fully_shard(layer, mesh=mesh)
            self.model = fully_shard(torch.nn.Sequential(*layers), mesh=mesh)
        elif job == "tensor":
            mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
            plan = {str(at): (ColwiseParallel, RowwiseParallel)[at // 2 % 2]() for at in range(0, 4, 2)}
            self.model = parallelize_module(torch.nn.Sequential(*layers[:4]), mesh["tp"], plan)
            self.groups["dp"] = mesh["dp"].get_group()
            call("all_reduce", "dp", 1)
        elif job == "pipeline":
            for peer, receive, send in ((rank - 1, "recv", ""), (rank + 1, "", "send")) * 2:
                if 0 <= peer < size:
                    call(receive or send, peer=peer)
            for peer, name in ((rank + 1, "recv"), (rank - 1, "send")):
                if 0 <= peer < size:
                    call(name, peer=peer)
        else:
            halves = [list(range(size // 2)), list(range(size // 2, size))]
            for name, lists in (("half", halves), ("parity", [list(range(size))[odd::2] for odd in (0, 1)])):
                made = [(ranks, dist.new_group(ranks, group_desc=name)) for ranks in lists]
                self.groups[name] = next(group for ranks, group in made if rank in ranks)
            for layer in range(2):
                call("all_reduce", "half", layer)
                call("all_reduce", "parity", layer)
        for name in draw.sample(("all_reduce", "broadcast", "all_gather", "all_reduce"), draw.randint(1, 3)):
            call(name, more=7)

    def places(self, fault: str) -> list[int]:
        """The calls of a step that can have a fault."""
        step = [(*call, group) for call, group in zip(self.step, [call[1] for call in self.step[1:]] + ["world"])]
        message = {"missing_send": "send", "missing_receive": "recv"}.get(fault)
        if message is not None:
            return [at for at, call in enumerate(step) if call[0] == message]
        own = [at for at, call in enumerate(step) if call[0] not in ("model", "send", "recv")]
        if fault == "order":
            return [at for at in own[:-1] if step[at][1] != "world" and step[at + 1][1] == "world"]
        return own if fault in CALLS else list(range(len(step)))

    def broken(self, fault: str, at: int) -> list[tuple]:
        """The calls of the step that has the fault."""
        step = list(self.step)
        name, group, count, dtype, peer = step[at]
        if fault == "other_operation":
            step[at] = ("all_reduce" if name == "broadcast" else "broadcast", group, count, dtype, peer)
        elif fault == "other_size":
            step[at] = (name, group, count + 3, dtype, peer)
        elif fault == "other_type":
            step[at] = (name, group, count, torch.float64, peer)
        elif fault in ("left_out", "missing_send", "missing_receive"):
            del step[at]
        elif fault == "order":
            step[at : at + 2] = reversed(step[at : at + 2])
        else:
            step.insert(at, ("all_reduce", group, 5, dtype, peer) if fault == "extra" else (fault, *step[at][1:]))
        return step

    def run(self, name: str, group: str, count: int, dtype: torch.dtype, peer: int) -> None:
        value, group = torch.ones(count, dtype=dtype), self.groups[group]
        if name == "model":
            self.model(torch.ones(4, 64)).sum().backward()
        elif name == "all_reduce":
            dist.all_reduce(value, group=group)
        elif name == "broadcast":
            dist.broadcast(value, group=group, group_src=0)
        elif name == "all_gather":
            dist.all_gather([torch.empty_like(value) for _ in range(group.size())], value, group=group)
        elif name == "send":
            dist.send(value, peer)
        elif name == "recv":
            dist.recv(value, peer)
        elif name in ("died", "lost_node"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif name == "silent":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif name == "failed":
            raise RuntimeError("the program's own error")
        elif name == "short_timeout":
            time.sleep(LATE)
        elif name == "slow":
            time.sleep(0.15)
        else:
            Event().wait()


def _rank(folder: str, truth: dict, rank: int, draw: random.Random, calls: memoryview) -> None:
    """A rank of a case, which never returns. It counts its calls; after those of all ranks is the port of the store."""
    fault, job, size = truth["fault"], truth["job"].split(", ")[0], truth["ranks"]
    has = rank == truth["rank"] or (fault == "lost_node" and rank == truth["rank"] + 1)
    step, place, pause = draw.randint(3, STEPS - 2), draw.random(), draw.choice((0, 0.01, 0.05))
    torch.set_num_threads(1)
    # The time-out of the job: beyond the dumps in some.
    limit = TIMEOUT if fault == "short_timeout" else draw.choice((TIMEOUT, 120))
    # Groups of a mesh have the default one.
    dist.distributed_c10d.default_pg_timeout = timedelta(seconds=limit)
    while not calls[size]:
        time.sleep(0.01)
    store = dist.TCPStore("127.0.0.1", calls[size], size, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", rank=rank, world_size=size, store=store)

    def dump() -> None:
        while not os.path.exists(f"{folder}/now"):
            time.sleep(0.05)
        with open(f"{folder}/.{rank}", "wb") as file:
            file.write(torch._C._distributed_c10d._dump_fr_trace(backend="gloo"))
        os.rename(f"{folder}/.{rank}", f"{folder}/nccl_trace_rank_{rank}")

    Thread(target=dump, daemon=True).start()
    with contextlib.suppress(RuntimeError):
        program = Program(job, rank, size, draw)
        places = program.places(fault)
        at = places[int(place * len(places))] if places else 0
        calls[rank] += 1
        if (fault == "slow_start" and rank != truth["rank"] - 1) or (fault == "late_start" and has):
            Event().wait()
        for number in range(STEPS if fault not in ("healthy", "slow") else 10**9):
            broken = has and (number == step or fault == "slow") and fault not in ("healthy", "slow_start", "late_start")
            for call in program.broken(fault, at) if broken else program.step:
                program.run(*call)
                calls[rank] += 1
            time.sleep(pause)
    Event().wait()


def _until_still(calls: memoryview, fault: str) -> None:
    """Waits until no rank has made a call for much longer than ever before; of a healthy job, until its ranks have made some."""
    seen, last, longest, until = list(calls), [time.monotonic()] * len(calls), 0.0, time.monotonic() + 300
    while (min(calls) < 60 if fault in ("healthy", "slow") else True) and time.monotonic() < until:
        time.sleep(0.05)
        now = time.monotonic()
        for rank, count in enumerate(calls):
            if count != seen[rank]:
                longest = max(longest, now - last[rank]) if count > 1 else longest
                seen[rank], last[rank] = count, now
        if min(calls) > 0 and now - max(last) > {"short_timeout": LATE, "slow_start": -4}.get(fault, 2) + 6 + 4 * longest:
            return


def _case(folder: str, truth: dict, seed: int) -> None:
    """Runs a case, and leaves its files in the folder."""
    os.makedirs(folder)
    fault, rank, size = truth["fault"], truth["rank"], truth["ranks"]
    calls = memoryview(mmap.mmap(-1, 8 * size + 8)).cast("Q")
    children = []
    for own in range(size):
        child = os.fork()
        if child == 0:
            sys.stderr = open(os.environ.get("HANGS_ERRORS", os.devnull), "a")
            _rank(folder, truth, own, random.Random(seed), calls)
        children.append(child)
    store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
    calls[size] = store.port
    _until_still(calls[:size], fault)
    open(f"{folder}/now", "w").close()
    ended = {rank: status for rank, child in enumerate(children) if (status := os.waitpid(child, os.WNOHANG)[1])}
    silent, until = {rank} if fault == "silent" else set(), time.monotonic() + 20
    while sum(name.startswith("nccl") for name in os.listdir(folder)) < size - len(ended.keys() | silent) and time.monotonic() < until:
        time.sleep(0.1)
    for one in range(size):
        if one not in ended:
            os.kill(children[one], signal.SIGKILL)
            os.waitpid(children[one], 0)
    if ended and fault != "lost_node":
        # What torchrun prints of ranks that ended.
        with open(f"{folder}/launcher.log", "w") as log:
            for at, (one, status) in enumerate(ended.items()):
                log.write(f"[{at}]:\n  rank      : {one} (local_rank: {one})\n  exitcode  : {os.waitstatus_to_exitcode(status)} (pid: {children[one]})\n")
    elif fault == "lost_node":
        missing = [{"rank": one, "host": "10.0.0.7", "status": {"unresponsive": True, "considered_dead": False}} for one in (rank, rank + 1)]
        group = {"hash": "0x1", "size": size, "ranks": [], "missing_ranks": missing}
        with open(f"{folder}/ras.json", "w") as ras:
            json.dump({"nccl_version": "2.29.7", "communicators": [group]}, ras)
    for name in ("now", *(f".{own}" for own in range(size))):
        with contextlib.suppress(FileNotFoundError):
            os.remove(f"{folder}/{name}")
    with open(f"{folder}/truth.json", "w") as file:
        json.dump(truth, file)


def truths(cases: int, seed: int) -> list[dict]:
    """What is drawn for each case: faults take turns."""
    draw, made = random.Random(seed), []
    for number in range(cases):
        fault = FAULTS[number % len(FAULTS)]
        job = {"order": "groups", "missing_send": "pipeline", "missing_receive": "pipeline"}.get(fault) or draw.choice(JOBS)
        size = draw.choice((4, 6, 8) if job in ("tensor", "groups") else (4, 5, 6) if fault == "lost_node" else (2, 3, 4, 5, 8))
        first, last = {"missing_send": (0, size - 2), "missing_receive": (1, size - 1)}.get(fault, (0, size - 1))
        rank = draw.randrange(0, size, 2) if fault == "lost_node" else draw.randint(first, last)
        made.append({"job": f"{job}, gloo", "ranks": size, "fault": fault, "rank": min(rank, size - 2) if fault == "lost_node" else rank})
    return made


def _analysed(folder: str, without: int | None) -> set[int] | None:
    """The ranks that PyTorch's analyser names first in the dumps of a case, without one of them; ``None`` if it fails."""
    lines: list[str] = []
    ended = False
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("Flight Recorder")
    logger.handlers = [handler]
    chosen = f"{folder}/chosen"
    os.mkdir(chosen)
    for name in os.listdir(folder):
        if name.startswith("nccl_trace_rank_") and name != f"nccl_trace_rank_{without}":
            os.link(f"{folder}/{name}", f"{chosen}/{name}")
    try:
        fr_trace.main([chosen, "-p", "nccl_trace_rank_", "--allow-incomplete-ranks"])
        ended = True
    except Exception as error:  # noqa: BLE001
        print(f"PyTorch's analyser on {folder}: {type(error).__name__}: {error}", file=sys.stderr)
    for name in os.listdir(chosen):
        os.remove(f"{chosen}/{name}")
    os.rmdir(chosen)
    for line in lines:
        if line.startswith("missing ranks: "):
            return set(ast.literal_eval(line.removeprefix("missing ranks: ")))
        if "Culprit rank" in line:
            return {int(rank) for rank in re.findall(r"Culprit rank (\d+)", line)}
        if found := re.search(r"missed FR dumps from ranks \(\{(.*)\}\)", line):
            return {int(rank) for rank in found[1].split(", ")}
    return set() if ended else None


def _others(folder: str, made: list[dict]) -> None:
    """Prints how often PyTorch's analyser names the rank, and it alone; for a healthy job, none."""
    print("| PyTorch's analyser: rank named alone (a healthy rank named; the analyser fails) | all dumps | without the culprit's |\n|---|---|---|")
    for kind, chosen in (("healthy jobs", HEALTHY), ("all faults", (*EVENTS, *CALLS))):
        cells = []
        for hides in (False, True):
            right = wrong = failed = all_cases = 0
            for number, truth in enumerate(made):
                if truth["fault"] not in chosen:
                    continue
                named = _analysed(f"{folder}/case-{number}", truth["rank"] if hides else None)
                wanted = set() if chosen is HEALTHY else {truth["rank"]}
                if truth["fault"] == "lost_node":
                    wanted.add(truth["rank"] + 1)
                all_cases, failed = all_cases + 1, failed + (named is None)
                right, wrong = right + (named == wanted), wrong + bool((named or set()) - wanted)
            share = 100 / max(1, all_cases)
            cells.append(f"{right * share:.1f} ({wrong * share:.1f}; {failed * share:.1f})")
        print(f"| {kind} | {cells[0]} | {cells[1]} |")


def main() -> None:
    cases, seed, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    allfold = sys.argv[4] if len(sys.argv) > 4 else "allfold"
    made, running = truths(cases, seed), []
    for number, truth in enumerate(made):
        while len(running) == AT_ONCE:
            os.waitpid(running.pop(0), 0)
        child = os.fork()
        if child == 0:
            _case(f"{folder}/case-{number}", truth, seed * 1000 + number)
            os._exit(0)
        running.append(child)
    for child in running:
        os.waitpid(child, 0)
    subprocess.run([allfold, "hangs", "--from", folder, "--seed", str(seed), "--json", f"{folder}/hangs.jsonl"], check=True)
    _others(folder, made)


if __name__ == "__main__":
    main()
