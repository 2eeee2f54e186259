"""A training function on a simulated machine: its ranks are threads of this process, their clock is virtual, their numbers are real.

    simulate --> a thread for each rank --> the user's function --> dist, DDP, FSDP, .. --> AllfoldGroup --> VirtualCommunicator
                     '-- _Charge: what every operator of the function would cost on the device               (virtual time)

One rank runs at a time. So the function runs as it would in a process of its own, and the times do not depend on this machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing._internal.distributed import multi_threaded_pg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .._allfold import AllfoldError, SimulatedCommunicator, SimulatedRun, device_peak, simulate_ranks
from .virtual import Baton, Random, Rank, VirtualCommunicator, VirtualStore, be, here

if TYPE_CHECKING:
    from .group import AllfoldGroup

_running = threading.Lock()


class _Charge(TorchDispatchMode):
    """Records the cost of every operator: floating-point operations (by PyTorch's formula, or 1 per element), and bytes moved."""

    def __init__(self, rank: Rank, slower: float) -> None:
        super().__init__()
        self._rank = rank
        # How much slower the device is in float32 than in the format of its peak.
        self._slower = slower

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._rank.baton.stopped:
            raise KeyboardInterrupt("the simulation was interrupted")
        out = func(*args, **kwargs)
        if func.namespace not in ("aten", "prims") or _is_free(func):
            return out
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not results:
            return out
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=out)
        else:
            flops = max(leaf.numel() for leaf in results + given)
        if results[0].dtype in (torch.float32, torch.float64):
            flops = int(flops * self._slower)
        self._rank.kernels.append((flops, sum(leaf.nbytes for leaf in results + given)))
        return out


_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "_local_scalar_dense"}


def _is_free(func: Any) -> bool:
    """Whether an operator launches no kernel: it makes a view, memory without values, or a Python number."""
    if func._overloadpacket.__name__ in _FREE:
        return True
    views = [result.alias_info for result in func._schema.returns]
    return bool(views) and all(info is not None and not info.is_write for info in views)


@dataclasses.dataclass(frozen=True)
class Simulated:
    """The outcome of :func:`simulate`. Times are in microseconds of virtual time, lists are in order of ranks."""

    results: list[Any]
    finish_us: list[float]
    step_us: float | None
    """Median time of a step of rank 0, from the end of an optimiser's step to the end of the next; ``None`` below two steps."""
    compute_us: list[float]
    communication_us: list[float]
    exposed_us: list[float]
    """Time before a rank's end in which the rank did not compute: it waited for communication, or for other ranks."""
    bytes_sent: list[int]
    event_hash: int
    """A hash of all messages with their times: the same program on the same machine has the same."""
    _run: SimulatedRun = dataclasses.field(repr=False)

    def trace(self, path: str) -> None:
        """Writes a Chrome trace, for ``chrome://tracing`` or Perfetto: a row for each rank's computation and communication."""
        self._run.trace(str(path))

    def __str__(self) -> str:
        step = "no two steps of an optimiser" if self.step_us is None else f"{self.step_us:,.1f} us a step"
        rows = zip(self.finish_us, self.compute_us, self.communication_us, self.exposed_us, self.bytes_sent)
        lines = [f"{len(self.results)} ranks, {step}", "rank   finish_us  compute_us     comm_us  exposed_us  sent_bytes"]
        for rank, (finish, compute, communication, exposed, sent) in enumerate(rows):
            lines.append(f"{rank:4}{finish:12,.1f}{compute:12,.1f}{communication:12,.1f}{exposed:12,.1f}{sent:12,}")
        return "\n".join(lines)


def group(options: Any) -> AllfoldGroup | None:
    """The process group of a simulated rank; ``None`` where this thread is not one."""
    from .group import AllfoldGroup

    rank = here()
    if rank is None:
        return None
    native = rank.native
    members = list(options.global_ranks_in_group)
    if members:
        name = int.from_bytes(hashlib.sha256(options.group_id.encode()).digest()[:8], "little")
        native = rank.waiting(rank.native.subgroup, members, name)
    return AllfoldGroup(VirtualCommunicator(rank, native), options.store, options.timeout.total_seconds())


def simulate(
    function: Callable[..., Any],
    *arguments: Any,
    topology: str = "hgx-h100",
    ranks: int = 8,
    device: str = "h100",
    seed: int = 0,
) -> Simulated:
    """Runs ``function(*arguments)`` on every rank of a simulated machine; returns what the ranks returned, and the times.

    The function trains as it would under ``torchrun``: with ``dist``, DDP, FSDP and whatever else works on CPU tensors; the
    process group is there already, and ``init_process_group`` in it does nothing. Its messages carry real numbers, so losses and
    weights are those of a real run. Every operator is charged to the clock by the roofline of ``device`` (``h100``, ``a100``,
    ``cpu_core``): its floating-point operations and its bytes. The time of Python itself, and operators that PyTorch does not
    dispatch, cost nothing. Operators on float32 tensors are charged without tensor cores.

    ``topology`` is a machine (``allfold machines`` lists them) or a file; ``ranks`` is its number of devices. Every rank begins
    with ``torch.manual_seed(seed)``, and has random numbers of its own: PyTorch's, NumPy's and Python's. Other variables of
    modules are shared by all ranks, which are threads. While it runs, this process must not make other process groups.

    Raises:
        ValueError: an unknown machine or device.
        RuntimeError: a simulation is under way in this process.
        Exception: what the first rank that failed raised, with the rank in a note.
    """
    if ranks < 1:
        raise ValueError(f"a machine of {ranks} ranks cannot run anything: give 1 or more")
    plain = f"{device}_f32"
    try:
        slower = device_peak(device) / device_peak(plain)
    except ValueError:
        slower = 1.0
        device_peak(device)
    if not _running.acquire(blocking=False):
        raise RuntimeError("a simulation is under way in this process: wait for its end, or start the other in a process of its own")
    try:
        return _simulated(lambda: function(*arguments), topology, ranks, device, slower, seed)
    finally:
        _running.release()


def _simulated(call: Callable[[], Any], topology: str, ranks: int, device: str, slower: float, seed: int) -> Simulated:
    baton, made, world = Baton(seed), [None] * ranks, _Worlds()

    def body(native: SimulatedCommunicator) -> Any:
        rank = made[native.rank] = Rank(baton, native)
        be(rank)
        rank.take()
        try:
            torch.autograd.set_multithreading_enabled(False)
            world.begin(rank)
            with _Charge(rank, slower):
                result = call()
            rank.finish()
            return result
        except BaseException:
            baton.failed = native.rank if baton.failed is None else baton.failed
            raise
        finally:
            # PyTorch keeps a thread's groups until the thread has ended, which is too late to free the Python objects in them.
            torch._C._distributed_c10d._unregister_all_process_groups()
            multi_threaded_pg.ThreadLocalWorld._world.__dict__.clear()
            rank.give()
            be(None)

    outcome: list[Any] = []
    # Up to Python 3.12, a `join` that Ctrl-C interrupts marks the thread as ended.
    ended = threading.Event()

    def run() -> None:
        try:
            outcome.append(simulate_ranks(topology, ranks, device, body))
        except BaseException as error:
            outcome.append(error)
        finally:
            ended.set()

    with world:
        thread = threading.Thread(target=run, name="allfold simulation")
        thread.start()
        try:
            while not ended.wait(0.1):
                pass
        except KeyboardInterrupt:
            baton.stopped = True
            ended.wait()
            raise
        thread.join()
    run_ = outcome[0]
    if isinstance(run_, BaseException):
        raise run_
    return _summary(run_, made)


class _Worlds:
    """Gives PyTorch a world for each thread, while ranks are threads."""

    def __init__(self) -> None:
        self._shared = dist.HashStore()

    def begin(self, rank: Rank) -> None:
        """Makes the world of a rank."""
        native = rank.native
        # PyTorch keeps only the C++ part of a store alive; this reference keeps its Python methods.
        rank.store = VirtualStore(self._shared)
        self._init("allfold", store=rank.store, rank=native.rank, world_size=native.size)

    def __enter__(self) -> None:
        c10d = dist.distributed_c10d
        self._random = Random()
        self._world = c10d._world
        c10d._world = multi_threaded_pg.ThreadLocalWorld()
        torch._C._distributed_c10d._set_thread_isolation_mode(True)
        # A program may have imported `init_process_group` itself: the function that it wraps is replaced, not the name.
        self._cell = c10d.init_process_group.__closure__[0]
        self._init = self._cell.cell_contents

        def init(*arguments: Any, **named: Any) -> None:
            if here() is None:
                self._init(*arguments, **named)
            elif not dist.is_initialized():
                self.begin(here())

        init.__name__ = self._init.__name__
        self._cell.cell_contents = init
        # Ranks of one process need not wait for each other to have made a group.
        self._barrier = c10d._store_based_barrier
        c10d._store_based_barrier = lambda *arguments, **named: (
            None if here() is not None else self._barrier(*arguments, **named)
        )
        # PyTorch's flight recorder is one per process, for a process that is one rank.
        self._recorder = c10d._maybe_attach_flight_recorder
        c10d._maybe_attach_flight_recorder = lambda *_: None
        self._hooks = [register_optimizer_step_pre_hook(_steps), register_optimizer_step_post_hook(_stepped)]

    def __exit__(self, *_: object) -> None:
        c10d = dist.distributed_c10d
        for hook in self._hooks:
            hook.remove()
        self._cell.cell_contents = self._init
        c10d._store_based_barrier = self._barrier
        c10d._maybe_attach_flight_recorder = self._recorder
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        c10d._world = self._world
        self._random.restore()


def _steps(optimizer: Any, *_: Any) -> None:
    """Called before an optimiser's step, which may be part of another optimiser's step."""
    rank = here()
    if rank is not None and rank.stepping is None:
        rank.stepping = optimizer


def _stepped(optimizer: Any, *_: Any) -> None:
    """Called after an optimiser's step."""
    rank = here()
    if rank is None or rank.stepping is not optimizer:
        return
    rank.stepping = None
    rank.optimizer = rank.optimizer or optimizer
    if rank.optimizer is optimizer:
        rank.steps.append(rank.waiting(rank.native.now))


def _summary(run: SimulatedRun, made: list[Rank]) -> Simulated:
    if not all(run.returned):
        first = run.first if run.first is not None else run.returned.index(False)
        # A rank with an exception of its own is the cause, rather than ranks with an `AllfoldError`, which follows from it.
        told = [at for at, well in enumerate(run.returned) if not well and not isinstance(run.outcomes[at], AllfoldError)]
        first = first if not told or first in told else told[0]
        error = run.outcomes[first]
        error.add_note(f"raised by simulated rank {first} of {len(run.returned)}")
        raise error
    count = len(run.outcomes)
    compute, communication, sent = [0.0] * count, [0.0] * count, [0] * count
    for rank, _, what, start, end, bytes_ in run.activities():
        (compute if what == "compute" else communication)[rank] += (end - start) / 1e6
        sent[rank] += bytes_
    finish = [time / 1e6 for time in run.finish]
    steps = made[0].steps
    times = [(after - before) / 1e6 for before, after in zip(steps, steps[1:])]
    return Simulated(
        results=run.outcomes,
        finish_us=finish,
        step_us=statistics.median(times) if times else None,
        compute_us=compute,
        communication_us=communication,
        exposed_us=[max(all_ - busy, 0.0) for all_, busy in zip(finish, compute)],
        bytes_sent=sent,
        event_hash=run.event_hash or 0,
        _run=run,
    )
