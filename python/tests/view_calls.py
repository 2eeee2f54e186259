"""Every call of ``torch.distributed`` on tensors that are views, whose sources are freed, or overwritten, as soon as that is allowed.

``wrong`` runs in a process or on a simulated rank. Memory that was freed is allocated again and filled before a call's result is used.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

POISON = 9
CPU = torch.device("cpu")


# Ways in which a tensor's values lie in memory.


def unaligned(values: torch.Tensor) -> torch.Tensor:
    memory = bytearray(values.nbytes + 1)
    return torch.frombuffer(memory, dtype=values.dtype, offset=1, count=values.numel()).view(values.shape).copy_(values)


FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda values: values.clone(),
    "transposed": lambda values: values.transpose(0, 3).contiguous().transpose(0, 3),
    "strided": lambda values: torch.stack([values, torch.ones_like(values)], -1)[..., 0],
    "sliced": lambda values: torch.cat([torch.ones_like(values), values, torch.ones_like(values)])[len(values) : 2 * len(values)],
    "channels_last": lambda values: values.contiguous(memory_format=torch.channels_last),
    "unaligned": unaligned,
    "expanded": lambda values: values[:1].clone().expand(values.shape),
    "negated": lambda values: torch._neg_view(values.neg()),
    "imaginary": lambda values: torch.complex(values, values.neg()).conj().imag,
    "parameter": lambda values: torch.nn.Parameter(values.contiguous(memory_format=torch.channels_last)),
}
OF_FLOATS = ("negated", "imaginary", "parameter")
TYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint16]


class Maker:
    """Makes the tensors of a rank in one form, and their values as contiguous tensors."""

    def __init__(self, form: str, dtype: torch.dtype, rows: int, width: int) -> None:
        self.form, self.dtype, self.shape = form, dtype, (rows, 3, 2, width)

    def values(self, seed: int) -> torch.Tensor:
        count = torch.Size(self.shape).numel()
        values = ((torch.arange(count) * 5 + seed * 3 + 1) % 4).reshape(self.shape).to(self.dtype)
        return values[:1].expand(self.shape).clone() if self.form == "expanded" else values

    def __call__(self, seed: int) -> torch.Tensor:
        return FORMS[self.form](self.values(seed))

    def out(self) -> torch.Tensor:
        """Memory for a result; an expanded tensor cannot hold one."""
        form = FORMS["strided" if self.form == "expanded" else self.form]
        return form(torch.zeros(self.shape, dtype=self.dtype))


def total(tensors: list[torch.Tensor]) -> torch.Tensor:
    # PyTorch does not add all unsigned types.
    if tensors[0].dtype is torch.uint16:
        return functools.reduce(torch.add, [tensor.long() for tensor in tensors]).to(torch.uint16)
    return functools.reduce(torch.add, tensors)


# The calls. Each returns its works, the tensors of its results, and their right values; its sources are freed when it returns.

Called = tuple[list[Any], list[torch.Tensor], list[torch.Tensor]]
CALLS: dict[str, Callable[[Maker, int, int, bool], Called]] = {}


def call(function: Callable) -> Callable:
    CALLS[function.__name__] = function
    return function


def own(make: Maker, seed: int) -> torch.Tensor:
    """A tensor of values in which a result is to be written."""
    tensor = make.out()
    with torch.no_grad():
        tensor.copy_(make.values(seed))
    return tensor


@call
def broadcast(make: Maker, rank: int, size: int, later: bool) -> Called:
    mine = make(1) if rank == 1 else make.out()
    return [dist.broadcast(mine, 1, async_op=later)], [mine], [make.values(1)]


@call
def all_reduce(make: Maker, rank: int, size: int, later: bool) -> Called:
    mine = own(make, rank)
    return [dist.all_reduce(mine, async_op=later)], [mine], [total([make.values(each) for each in range(size)])]


@call
def reduce(make: Maker, rank: int, size: int, later: bool) -> Called:
    mine = own(make, rank)
    wanted = total([make.values(each) for each in range(size)]) if rank == 1 else make.values(rank)
    return [dist.reduce(mine, 1, async_op=later)], [mine], [wanted]


@call
def all_gather(make: Maker, rank: int, size: int, later: bool) -> Called:
    outputs = [make.out() for _ in range(size)]
    return [dist.all_gather(outputs, make(rank), async_op=later)], outputs, [make.values(each) for each in range(size)]


@call
def all_gather_of_different_lengths(make: Maker, rank: int, size: int, later: bool) -> Called:
    outputs = [make.out()[: 1 + each % 2] for each in range(size)]
    work = dist.all_gather(outputs, make(rank)[: 1 + rank % 2], async_op=later)
    return [work], outputs, [make.values(each)[: 1 + each % 2] for each in range(size)]


@call
def all_gather_into_tensor(make: Maker, rank: int, size: int, later: bool) -> Called:
    whole = Maker(make.form, make.dtype, size * make.shape[0], make.shape[3]).out()
    work = dist.all_gather_into_tensor(whole, make(rank), async_op=later)
    return [work], [whole], [torch.cat([make.values(each) for each in range(size)])]


@call
def gather(make: Maker, rank: int, size: int, later: bool) -> Called:
    outputs = [make.out() for _ in range(size)] if rank == 1 else []
    work = dist.gather(make(rank), outputs or None, 1, async_op=later)
    return [work], outputs, [make.values(each) for each in range(size)] if outputs else []


@call
def scatter(make: Maker, rank: int, size: int, later: bool) -> Called:
    output = make.out()
    work = dist.scatter(output, [make(each + 5) for each in range(size)] if rank == 1 else None, 1, async_op=later)
    return [work], [output], [make.values(rank + 5)]


@call
def reduce_scatter(make: Maker, rank: int, size: int, later: bool) -> Called:
    output = make.out()
    work = dist.reduce_scatter(output, [make(rank * size + target) for target in range(size)], async_op=later)
    return [work], [output], [total([make.values(source * size + rank) for source in range(size)])]


@call
def reduce_scatter_of_different_lengths(make: Maker, rank: int, size: int, later: bool) -> Called:
    output = make.out()[: 1 + rank % 2]
    work = dist.reduce_scatter(output, [make(rank * size + target)[: 1 + target % 2] for target in range(size)], async_op=later)
    return [work], [output], [total([make.values(source * size + rank)[: 1 + rank % 2] for source in range(size)])]


@call
def reduce_scatter_tensor(make: Maker, rank: int, size: int, later: bool) -> Called:
    whole = Maker(make.form, make.dtype, size * make.shape[0], make.shape[3])
    output = make.out()
    work = dist.reduce_scatter_tensor(output, whole(rank), async_op=later)
    return [work], [output], [total([whole.values(source).chunk(size)[rank] for source in range(size)])]


@call
def all_to_all(make: Maker, rank: int, size: int, later: bool) -> Called:
    outputs = [make.out() for _ in range(size)]
    work = dist.all_to_all(outputs, [make(rank * size + target) for target in range(size)], async_op=later)
    return [work], outputs, [make.values(source * size + rank) for source in range(size)]


@call
def all_to_all_single(make: Maker, rank: int, size: int, later: bool) -> Called:
    whole = Maker(make.form, make.dtype, size * make.shape[0], make.shape[3])
    output = whole.out()
    work = dist.all_to_all_single(output, whole(rank), async_op=later)
    return [work], [output], [torch.cat([whole.values(source).chunk(size)[rank] for source in range(size)])]


@call
def all_to_all_single_by_splits(make: Maker, rank: int, size: int, later: bool) -> Called:
    # Rank s sends 1 + (s + t) % 2 rows to rank t.
    rows = [[1 + (source + target) % 2 for target in range(size)] for source in range(size)]
    of = [Maker(make.form, make.dtype, sum(rows[source]), make.shape[3]) for source in range(size)]
    received = [rows[source][rank] for source in range(size)]
    output = Maker(make.form, make.dtype, sum(received), make.shape[3]).out()
    work = dist.all_to_all_single(output, of[rank](rank), received, rows[rank], async_op=later)
    return [work], [output], [torch.cat([of[source].values(source).split(rows[source])[rank] for source in range(size)])]


@call
def send_and_receive(make: Maker, rank: int, size: int, later: bool) -> Called:
    to, source = (rank + 1) % size, (rank - 1) % size
    output, given = make.out(), make(rank)
    if later:
        works = [dist.irecv(output, source, tag=4), dist.isend(given, to, tag=4)]
    else:
        works = []
        dist.send(given, to, tag=4)
        with torch.no_grad():
            given.fill_(POISON)  # a message is sent when `send` returns
        dist.recv(output, source, tag=4)
    return works, [output], [make.values(source)]


@call
def batch_isend_irecv(make: Maker, rank: int, size: int, later: bool) -> Called:
    to, source = (rank + 1) % size, (rank - 1) % size
    outputs = [make.out() for _ in range(3)]
    batch = [dist.P2POp(dist.isend, make(rank + at), to) for at in range(3)]
    batch += [dist.P2POp(dist.irecv, output, source) for output in outputs]
    works = dist.batch_isend_irecv(batch)
    if not later:
        works = [work.wait() for work in works][:0]
    return works, outputs, [make.values(source + at) for at in range(3)]


@call
def coalesced(make: Maker, rank: int, size: int, later: bool) -> Called:
    gathered, received = [make.out() for _ in range(size)], make.out()
    mine = make(0) if rank == 0 else make.out()
    with dist._coalescing_manager(device=CPU, async_ops=later) as manager:
        dist.broadcast(mine, 0)
        dist.all_gather(gathered, make(rank))
        dist.irecv(received, (rank - 1) % size)
        dist.isend(make(rank + 3), (rank + 1) % size)
    wanted = [make.values(each) for each in range(size)]
    return [manager] if later else [], [mine, *gathered, received], [make.values(0), *wanted, make.values((rank - 1) % size + 3)]


@call
def coalesced_of_one_kind(make: Maker, rank: int, size: int, later: bool) -> Called:
    sums, works = [own(make, rank + each) for each in range(3)], []
    whole = Maker(make.form, make.dtype, size * make.shape[0], make.shape[3])
    gathered, scattered = [whole.out() for _ in range(2)], [make.out() for _ in range(2)]
    with dist._coalescing_manager(async_ops=later) as manager:
        for each in sums:
            dist.all_reduce(each)
    works.append(manager)
    with dist._coalescing_manager(async_ops=later) as manager:
        for at, each in enumerate(gathered):
            dist.all_gather_into_tensor(each, make(rank + at))
    works.append(manager)
    with dist._coalescing_manager(async_ops=later) as manager:
        for at, each in enumerate(scattered):
            dist.reduce_scatter_tensor(each, whole(rank + at))
    works.append(manager)
    wanted = [total([make.values(source + each) for source in range(size)]) for each in range(3)]
    wanted += [torch.cat([make.values(source + at) for source in range(size)]) for at in range(2)]
    wanted += [total([whole.values(source + at).chunk(size)[rank] for source in range(size)]) for at in range(2)]
    return works if later else [], [*sums, *gathered, *scattered], wanted


@call
def objects(make: Maker, rank: int, size: int, later: bool) -> Called:
    if make.dtype is torch.uint16:
        return [], [], []  # PyTorch cannot pickle such tensors
    everyone, one, mine = [None] * size, [make(1) if rank == 1 else None], [None]
    dist.all_gather_object(everyone, make(rank))
    dist.broadcast_object_list(one, 1)
    dist.scatter_object_list(mine, [make(each + 2) for each in range(size)] if rank == 0 else None, 0)
    received = [None]
    dist.send_object_list([make(rank + 1)], (rank + 1) % size)
    dist.recv_object_list(received, (rank - 1) % size)
    wanted = [make.values(each) for each in range(size)]
    wanted += [make.values(1), make.values(rank + 2), make.values((rank - 1) % size + 1)]
    return [], [*everyone, *one, *mine, *received], wanted


# How a program waits for what it issued; without a wait, its calls block.


def polled(works: list[Any]) -> None:
    until = time.monotonic() + 30
    for work in works:
        # A coalescing manager has no test of its own.
        while not (work.is_completed() if hasattr(work, "is_completed") else work.wait() is None):
            assert time.monotonic() < until, f"{work} is not done after 30 s"
            time.sleep(0.0002)


WAITS: dict[str, Callable[[list[Any]], Any] | None] = {
    "blocking": None,
    "wait": lambda works: [work.wait() for work in works],
    "poll": polled,
    "future": lambda works: [work.get_future().wait() if hasattr(work, "get_future") else work.wait() for work in works],
}


def poison(make: Maker, size: int) -> None:
    """Allocates and fills memory of the sizes that a call has just freed."""
    for rows in (make.shape[0], size * make.shape[0]):
        shape = (rows, *make.shape[1:])
        kept = [torch.full(shape, POISON, dtype=torch.int32).to(make.dtype) for _ in range(12)]
        kept += [torch.full((*shape, 2), POISON, dtype=torch.int32).to(make.dtype) for _ in range(6)]


def wrong(waits: list[str], width: int, dtypes: list[torch.dtype]) -> tuple[int, list[str]]:
    """Makes every call; returns the number of comparisons, and the names of those that failed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count, failed = 0, []
    for form, dtype in [(form, dtype) for form in FORMS for dtype in dtypes if form not in OF_FLOATS or dtype is torch.float32]:
        make = Maker(form, dtype, 2, width)
        for name, function in CALLS.items():
            for how in waits:
                works, outputs, wanted = function(make, rank, size, WAITS[how] is not None)
                poison(make, size)
                if WAITS[how] is not None:
                    WAITS[how]([work for work in works if work is not None])
                for got, right in zip(outputs, wanted, strict=True):
                    count += 1
                    if not torch.equal(got.detach(), right):
                        failed.append(f"{name}, {how}, {form} {dtype} {tuple(got.shape)}: {got.flatten()[:6].tolist()}")
                    # Autograd records no operation of a group.
                    if got.grad_fn is not None and form != "parameter":
                        failed.append(f"{name}, {how}, {form}: {got.grad_fn}")
    return count, failed
