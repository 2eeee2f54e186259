"""Starts ranks for tests of ``allfold.torch``: processes that join by a store, each under a time limit.

Each rank is forked from a process that has imported PyTorch, so a test takes tenths of a second.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

multiprocessing.set_forkserver_preload(["allfold.torch"])


@dataclasses.dataclass
class Outcome:
    """The outcome of a rank: what its function returned, or the error that it raised; neither where it was killed or hangs."""

    value: Any = None
    error: str | None = None
    kind: str | None = None
    seconds: float = 0.0
    ended: bool = False
    hangs: bool = False


def loaded(path: str) -> Any:
    """The module of a test's file, under a name that does not depend on how pytest imports it."""
    name = os.path.splitext(os.path.basename(path))[0]
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def _entered(pipe: Any, path: str, name: str, environment: dict[str, str], arguments: tuple) -> None:
    os.environ.update(environment)
    outcome = Outcome(ended=True)
    begun = time.monotonic()
    try:
        outcome.value = getattr(loaded(path), name)(*arguments)
    except BaseException as error:  # noqa: BLE001
        outcome.error, outcome.kind = str(error), type(error).__name__
        if os.environ.get("SHOW_ERRORS"):
            traceback.print_exc()
    outcome.seconds = time.monotonic() - begun
    pipe.send(outcome)
    pipe.close()
    # The process ends as a script does, without the waits of multiprocessing.
    import atexit

    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


def launch(
    size: int,
    function: Callable,
    *arguments: Any,
    limit: float = 60.0,
    environment: dict[str, str] | None = None,
    ranks: list[int] | None = None,
    meanwhile: Callable[[list], None] | None = None,
) -> list[Outcome]:
    """Runs ``function(rank, size, store, *arguments)`` in a process for each rank, ``store`` the path of a file store.

    Returns the outcome of each, at the latest after ``limit`` seconds: a rank that has not ended by then hangs, and is killed.
    ``ranks`` are the ranks to start, all by default; ``meanwhile`` is called with the processes once they run.
    """
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        path = sys.modules[function.__module__].__file__
        numbers = list(range(size)) if ranks is None else ranks
        pipes, processes = [], []
        for rank in numbers:
            mine, theirs = context.Pipe(duplex=False)
            given = (theirs, path, function.__name__, environment or {}, (rank, size, store, *arguments))
            process = context.Process(target=_entered, args=given, daemon=True)
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        if meanwhile is not None:
            meanwhile(processes)
        outcomes = [Outcome() for _ in numbers]
        until = time.monotonic() + limit
        open_ = dict(zip(pipes, range(len(pipes))))
        while open_ and (left := until - time.monotonic()) > 0:
            for pipe in wait(list(open_), timeout=left):
                at = open_.pop(pipe)
                try:
                    outcomes[at] = pipe.recv()
                except EOFError:
                    pass  # it was killed
        for at in open_.values():
            outcomes[at].hangs = True
        for process in processes:
            if not any(outcome.hangs for outcome in outcomes):
                process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        return outcomes


def results(outcomes: list[Outcome]) -> list[Any]:
    """The results of ranks, each of which must have one."""
    for rank, outcome in enumerate(outcomes):
        assert not outcome.hangs, f"rank {rank} hangs"
        assert outcome.error is None, f"rank {rank} raised {outcome.kind}: {outcome.error}"
        assert outcome.ended, f"rank {rank} died"
    return [outcome.value for outcome in outcomes]


def join(rank: int, size: int, store: str, seconds: float = 30.0) -> Any:
    """Joins the default group as this rank; returns the group."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    import allfold.torch  # noqa: F401

    torch.set_num_threads(1)
    timeout = timedelta(seconds=seconds)
    backend = os.environ.get("BACKEND", "allfold")
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)
    return dist.group.WORLD
