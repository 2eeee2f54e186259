"""Real jobs of PyTorch that hang under a known fault, judged by ``allfold triage`` and by PyTorch's own analyser.

    python python/bench/hangs.py CASES SEED FOLDER [ALLFOLD]

Each case forks 2 to 8 ranks that train a small network (``JOBS``) over one of ``BACKENDS``, and make collectives of their own. One rank
has the fault. Once no rank moves, every rank that can writes its dump. FOLDER gets a folder for each case, which
``allfold hangs --from FOLDER`` judges: the dumps, a launcher's log, and the truth. Printed are its table, and one by cause with what
PyTorch's analyser names in the same dumps. Gloo's dumps name the ranks of the latest group alone, and that without its name: the analyser,
which ends there with an error, gets them with the groups that the ranks really had.

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
import pickle
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from threading import Event, Thread

import torch
import torch._inductor.codecache  # noqa: F401  Otherwise PyTorch imports it when a rank writes its dump, which then stands still for seconds.
import torch.distributed as dist
import torch.distributed.flight_recorder.fr_trace as fr_trace
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import allfold.torch  # noqa: F401

HEALTHY = ("healthy", "slow_start", "slow")
EVENTS = ("died", "silent", "elsewhere", "failed", "late_start", "short_timeout", "lost_node")
CALLS = ("other_operation", "other_size", "other_type", "left_out", "extra", "order", "missing_send", "missing_receive")
# Those of a short run first.
FAULTS = tuple(dict.fromkeys(("healthy", "left_out", "elsewhere", "other_size", "silent", "died", *HEALTHY, *EVENTS, *CALLS)))
JOBS = ("ddp", "fsdp", "tensor", "pipeline", "groups")
BACKENDS = ("gloo", "allfold")
AT_ONCE = 5
STEPS = 12
# The folder within a case's for the groups of each rank.
GROUPS = "groups"
# Seconds: of the time-out, and by which a rank comes too late.
TIMEOUT, LATE = 8, 11


class Program:
    """What a rank does: ``step`` is its calls in a step, each (operation, group, elements, type, peer)."""

    def __init__(self, job: str, rank: int, size: int, draw: random.Random, begin: Callable[[], None]) -> None:
        """Makes the groups, then calls ``begin``, then makes the model, which may take collectives."""
        self.rank, self.groups = rank, {"world": dist.group.WORLD}
        # The processes that end with this one.
        self.host = [os.getpid()]
        self.model, self.step = None, [("model", "world", 0, torch.float32, 0)] if job in ("ddp", "fsdp", "tensor") else []
        layers = [layer for _ in range(draw.randint(2, 4)) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
        count = draw.randrange(10, 1000)

        def call(name: str, group: str = "world", more: int = 0, peer: int = 0) -> None:
            self.step.append((name, group, count + more, torch.float32, peer))

        if job == "fsdp":
            mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("shard",))
        elif job == "tensor":
            mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
            self.groups["dp"] = mesh["dp"].get_group()
        elif job == "groups":
            halves = [list(range(size // 2)), list(range(size // 2, size))]
            for name, lists in (("half", halves), ("parity", [list(range(size))[odd::2] for odd in (0, 1)])):
                made = [(ranks, dist.new_group(ranks, group_desc=name)) for ranks in lists]
                self.groups[name] = next(group for ranks, group in made if rank in ranks)
        begin()
        if job == "ddp":
            self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)
        elif job == "fsdp":
            for layer in layers[::2]:
                fully_shard(layer, mesh=mesh)
            self.model = fully_shard(torch.nn.Sequential(*layers), mesh=mesh)
        elif job == "tensor":
            plan = {str(at): (ColwiseParallel, RowwiseParallel)[at // 2 % 2]() for at in range(0, 4, 2)}
            self.model = parallelize_module(torch.nn.Sequential(*layers[:4]), mesh["tp"], plan)
            call("all_reduce", "dp", 1)
        elif job == "pipeline":
            for peer, receive, send in ((rank - 1, "recv", ""), (rank + 1, "", "send")) * 2:
                if 0 <= peer < size:
                    call(receive or send, peer=peer)
            for peer, name in ((rank + 1, "recv"), (rank - 1, "send")):
                if 0 <= peer < size:
                    call(name, peer=peer)
        else:
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
            for process in self.host:
                os.kill(process, signal.SIGKILL)
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
    """A rank of a case, which never returns. It counts its calls; after those of all ranks are the port of the store and the processes."""
    fault, size = truth["fault"], truth["ranks"]
    job, backend = truth["job"].split(", ")
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
    os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"
    dist.init_process_group(backend, rank=rank, world_size=size, store=store)

    def dump() -> None:
        while not os.path.exists(f"{folder}/now"):
            time.sleep(0.05)
        begun = time.time()
        with open(f"{folder}/.{rank}", "wb") as file:
            file.write(torch._C._distributed_c10d._dump_fr_trace(backend=backend))
        # On a busy machine a dump takes seconds, for which the rank itself stands still.
        os.utime(f"{folder}/.{rank}", (begun, begun))
        os.rename(f"{folder}/.{rank}", f"{folder}/nccl_trace_rank_{rank}")

    def begin() -> None:
        groups = dist.distributed_c10d._world.pg_map
        known = {group.group_name: [group.group_desc, dist.get_process_group_ranks(group)] for group in groups}
        with open(f"{folder}/{GROUPS}/{rank}", "w") as file:
            json.dump(known, file)
        calls[rank] += 1
        if fault == "late_start" and has:
            Event().wait()

    Thread(target=dump, daemon=True).start()
    with contextlib.suppress(RuntimeError):
        program = Program(job, rank, size, draw, begin)
        if fault == "lost_node":
            program.host = [calls[size + 1 + one] for one in (truth["rank"] + (rank == truth["rank"]), rank)]
        places = program.places(fault)
        at = places[int(place * len(places))] if places else 0
        calls[rank] += 1
        if fault == "slow_start" and rank != truth["rank"] - 1:
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
                longest = max(longest, now - last[rank]) if count > 2 else longest
                seen[rank], last[rank] = count, now
        # Ranks that are slow to start are not waited for as long as triage allows them to be.
        still = 2 if fault == "slow_start" else {"short_timeout": LATE}.get(fault, 2) + 6 + 4 * longest
        if min(calls) > (fault != "late_start") and now - max(last) > still:
            return


def _case(folder: str, truth: dict, seed: int) -> None:
    """Runs a case, and leaves its files in the folder."""
    os.makedirs(f"{folder}/{GROUPS}")
    fault, rank, size = truth["fault"], truth["rank"], truth["ranks"]
    calls = memoryview(mmap.mmap(-1, 8 * (2 * size + 1))).cast("Q")
    children = []
    for own in range(size):
        child = os.fork()
        if child == 0:
            sys.stderr = open(os.environ.get("HANGS_ERRORS", os.devnull), "a")
            _rank(folder, truth, own, random.Random(seed), calls)
        children.append(child)
        calls[size + 1 + own] = child
    store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
    calls[size] = store.port
    _until_still(calls[:size], fault)
    open(f"{folder}/now", "w").close()
    ended = {rank: status for rank, child in enumerate(children) if (status := os.waitpid(child, os.WNOHANG)[1])}
    # On a busy machine dumps take long.
    silent, until = {rank} if fault == "silent" else set(), time.monotonic() + 120
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
        # The second turn of a fault is over the other backend. A missing receive hangs nothing over Allfold, whose sends do not wait.
        backend = BACKENDS[(number + number // len(FAULTS)) % 2] if fault != "missing_receive" else "gloo"
        made.append({"job": f"{job}, {backend}", "ranks": size, "fault": fault, "rank": min(rank, size - 2) if fault == "lost_node" else rank})
    return made


def _analysed(folder: str, without: int | None) -> set[int] | None:
    """The ranks that PyTorch's analyser names first in the dumps of a case, without one of them; ``None`` if it fails."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writes, "w") as told:
            json.dump(_analyse(folder, without), told)
            told.flush()
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as told:
        text = told.read()
    os.waitpid(child, 0)
    found = json.loads(text or "null")
    return None if found is None else set(found)


def _analyse(folder: str, without: int | None) -> list[int] | None:
    """What ``_analysed`` finds, in a process of its own."""
    lines: list[str] = []
    ended = False
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("Flight Recorder").handlers = [handler]
    with tempfile.TemporaryDirectory() as chosen:
        for name in os.listdir(folder):
            rank = name.removeprefix("nccl_trace_rank_")
            if name == rank or rank == str(without):
                continue
            with open(f"{folder}/{name}", "rb") as file, open(f"{folder}/{GROUPS}/{rank}") as groups:
                dump, known = pickle.load(file), json.load(groups)  # noqa: S301
            listed = {group: {"name": group, "desc": desc, "ranks": str(ranks)} for group, (desc, ranks) in known.items()}
            dump["pg_config"] = listed
            with open(f"{chosen}/{name}", "wb") as file:
                pickle.dump(dump, file)
        try:
            fr_trace.main([chosen, "-p", "nccl_trace_rank_", "--allow-incomplete-ranks"])
            ended = True
        except (Exception, SystemExit) as error:  # noqa: BLE001
            print(f"PyTorch's analyser on {folder}: {type(error).__name__}: {error}", file=sys.stderr)
    for line in lines:
        if line.startswith("missing ranks: "):
            return sorted(ast.literal_eval(line.removeprefix("missing ranks: ")))
        if "Culprit rank" in line:
            return sorted({int(rank) for rank in re.findall(r"Culprit rank (\d+)", line)})
        if found := re.search(r"missed FR dumps from ranks \(\{(.*)\}\)", line):
            return [int(rank) for rank in found[1].split(", ")]
    return [] if ended else None


def _cell(counts: list[tuple[bool, bool, bool]]) -> str:
    """Per cent of cases that are right, wrong, and undecided."""
    right, wrong, open_ = (100 * sum(each) / max(1, len(counts)) for each in zip(*counts or [(False, False, False)]))
    return f"{right:.0f} ({wrong:.0f}; {open_:.0f})"


def table(folder: str, made: list[dict]) -> str:
    """The scores by cause: what ``allfold hangs`` wrote, and PyTorch's analyser, which is right if it names the rank alone, or in a healthy
    job none. It names no causes."""
    rows: dict[tuple[int, str], list[list[tuple[bool, bool, bool]]]] = {}
    with open(f"{folder}/hangs.jsonl") as records:
        judged = [record for record in map(json.loads, records) if record.get("kind") == "hang"]
    for number, truth in enumerate(made):
        fault, healthy = truth["fault"], truth["fault"] in HEALTHY
        cells = []
        for withheld in ("none", "culprit"):
            ours = next(one for one in judged if one["case"] == number and one["withheld"] == withheld)
            cells.append((ours["first"], ours["wrong"], ours["undecided"]))
        wanted = set() if healthy else {truth["rank"], truth["rank"] + (fault == "lost_node")}
        for hidden in (None, truth["rank"]):
            named = _analysed(f"{folder}/case-{number}", hidden)
            cells.append((named == wanted, bool((named or set()) - wanted), not healthy and not named))
        backend = truth["job"].split(", ")[1]
        sums = [(90, "healthy jobs")] if healthy else [(91, "all faults"), (92, f"all faults, {backend}")]
        for row in [(FAULTS.index(fault), fault.replace("_", " ")), *sums]:
            for cell, added in zip(rows.setdefault(row, [[], [], [], []]), cells):
                cell.append(added)
    lines = [
        "| in per cent: rank named first, triage also the cause (a healthy rank; undecided) | cases | triage, all dumps | without the "
        "culprit's | PyTorch's analyser, all dumps | without the culprit's |",
        "|---|---|---|---|---|---|",
        *(f"| {name} | {len(cells[0])} | {' | '.join(map(_cell, cells))} |" for (_, name), cells in sorted(rows.items())),
    ]
    return "\n".join(lines)


def run(made: list[dict], seed: int, folder: str) -> None:
    """Runs these cases, several at once."""
    running: list[int] = []
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


def main() -> None:
    cases, seed, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    allfold_command = sys.argv[4] if len(sys.argv) > 4 else "allfold"
    made = truths(cases, seed)
    run(made, seed, folder)
    subprocess.run([allfold_command, "hangs", "--from", folder, "--seed", str(seed), "--json", f"{folder}/hangs.jsonl"], check=True)
    print(table(folder, made))


if __name__ == "__main__":
    main()
