"""The backend of torch.distributed: each collective compared with plain arithmetic, and what happens to bad input."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
pytest.importorskip("torch", reason="SKIP: PyTorch is not installed")

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch_ranks import join, launch, results

OPS = {"sum": ReduceOp.SUM, "prod": ReduceOp.PRODUCT, "min": ReduceOp.MIN, "max": ReduceOp.MAX, "avg": ReduceOp.AVG}
BITS = {"band": ReduceOp.BAND, "bor": ReduceOp.BOR, "bxor": ReduceOp.BXOR}
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
CARRIED = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.float8_e4m3fn]


def tensor(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A rank's numbers, small enough for every type to hold their sums and products."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 5 + rank * 3 + 1) % 4).reshape(shape).to(dtype)


def operators(dtype: torch.dtype) -> list[str]:
    if dtype.is_complex:
        return ["sum"]
    if dtype.is_floating_point:
        return ["sum", "prod", "min", "max", "avg"]
    return ["sum", "prod", "min", "max", "band", "bor", "bxor"] if dtype is not torch.uint16 else ["sum", "prod"]


def reduced(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    """The reduction of all ranks' tensors, by PyTorch in one process."""
    whole = torch.stack(parts)
    dtype = whole.dtype
    if dtype is torch.bool:
        if op == "bxor":
            return whole.sum(0) % 2 == 1
        return whole.any(0) if op in ("sum", "max", "bor") else whole.all(0)
    if op in BITS:
        step = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}[op]
        total = parts[0]
        for part in parts[1:]:
            total = step(total, part)
        return total
    wide = whole.to(torch.complex128 if dtype.is_complex else torch.float64)
    total = {"sum": wide.sum, "prod": wide.prod, "avg": wide.mean, "min": wide.amin, "max": wide.amax}[op](0)
    return total.to(dtype)


class Checks:
    """Counts comparisons, and keeps the names of those that failed."""

    def __init__(self) -> None:
        self.count = 0
        self.wrong: list[str] = []

    def same(self, name: str, got: torch.Tensor, wanted: torch.Tensor) -> None:
        self.count += 1
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            self.wrong.append(f"{name}: {got.dtype} {tuple(got.shape)}, not {wanted.dtype} {tuple(wanted.shape)}")
            return
        both = [each.contiguous().view(torch.uint8) if each.element_size() == 1 else each for each in (got, wanted)]
        if got.is_floating_point() and got.element_size() > 1:
            fits = torch.allclose(*(each.double() for each in both), rtol=1e-2 if got.element_size() == 2 else 1e-6, atol=0)
        else:
            fits = torch.equal(*both)
        if not fits:
            self.wrong.append(f"{name}: {got.flatten()[:8].tolist()}, not {wanted.flatten()[:8].tolist()}")


def check_reductions(rank: int, size: int, store: str) -> tuple[int, list[str]]:
    join(rank, size, store)
    checks, everyone = Checks(), range(size)
    for dtype in [dtype for dtype in CARRIED if dtype is not torch.float8_e4m3fn]:
        for shape in [(0,), (3, 7), (4097,)]:
            for op in operators(dtype):
                kind, name = (OPS | BITS)[op], f"{op} of {dtype} {shape}"
                wanted = reduced([tensor(each, shape, dtype) for each in everyone], op)
                mine = tensor(rank, shape, dtype)
                dist.all_reduce(mine, kind)
                checks.same(f"all_reduce {name}", mine, wanted)
                mine = tensor(rank, shape, dtype)
                dist.all_reduce(mine, kind, async_op=True).wait()
                checks.same(f"all_reduce async {name}", mine, wanted)
                mine = tensor(rank, shape, dtype)
                dist.reduce(mine, size - 1, kind)
                checks.same(f"reduce {name}", mine, wanted if rank == size - 1 else tensor(rank, shape, dtype))
                inputs = [[tensor(source * size + target, shape, dtype) for target in everyone] for source in everyone]
                wanted = reduced([inputs[source][rank] for source in everyone], op)
                output = torch.empty(shape, dtype=dtype)
                dist.reduce_scatter(output, inputs[rank], kind)
                checks.same(f"reduce_scatter {name}", output, wanted)
                output = torch.empty(wanted.numel(), dtype=dtype)
                dist.reduce_scatter_tensor(output, torch.stack(inputs[rank]).flatten(), kind)
                checks.same(f"reduce_scatter_tensor {name}", output, wanted.flatten())
    # Blocks of different lengths.
    for asynchronous in (False, True):
        lengths = [3 * target + 1 for target in everyone]
        blocks = [[tensor(source + target, (lengths[target],), torch.float32) for target in everyone] for source in everyone]
        output = torch.empty(lengths[rank])
        work = dist.reduce_scatter(output, blocks[rank], async_op=asynchronous)
        if asynchronous:
            work.wait()
        wanted = reduced([blocks[source][rank] for source in everyone], "sum")
        checks.same("reduce_scatter of different lengths", output, wanted)
    return checks.count, checks.wrong


def check_copies(rank: int, size: int, store: str) -> tuple[int, list[str]]:
    join(rank, size, store)
    checks, everyone = Checks(), range(size)
    for dtype in CARRIED:
        for shape in [(0,), (1,), (3, 7), (4097,)]:
            name = f"of {dtype} {shape}"
            all_ = [tensor(each, shape, dtype) for each in everyone]
            root = size - 1
            mine = all_[rank].clone()
            dist.broadcast(mine, root)
            checks.same(f"broadcast {name}", mine, all_[root])
            outputs = [torch.empty(shape, dtype=dtype) for _ in everyone]
            dist.all_gather(outputs, all_[rank])
            for source in everyone:
                checks.same(f"all_gather {name}", outputs[source], all_[source])
            output = torch.empty((size, *shape), dtype=dtype)
            dist.all_gather_into_tensor(output, all_[rank], async_op=True).wait()
            checks.same(f"all_gather_into_tensor {name}", output, torch.stack(all_))
            outputs = [torch.empty(shape, dtype=dtype) for _ in everyone] if rank == root else None
            dist.gather(all_[rank], outputs, root)
            for source in everyone if rank == root else []:
                checks.same(f"gather {name}", outputs[source], all_[source])
            output = torch.empty(shape, dtype=dtype)
            dist.scatter(output, [tensor(each + 5, shape, dtype) for each in everyone] if rank == root else None, root)
            checks.same(f"scatter {name}", output, tensor(rank + 5, shape, dtype))
            sent = [tensor(rank * size + target, shape, dtype) for target in everyone]
            outputs = [torch.empty(shape, dtype=dtype) for _ in everyone]
            dist.all_to_all(outputs, sent)
            for source in everyone:
                checks.same(f"all_to_all {name}", outputs[source], tensor(source * size + rank, shape, dtype))
            output = torch.empty((size, *shape), dtype=dtype)
            dist.all_to_all_single(output, torch.stack(sent))
            checks.same(f"all_to_all_single {name}", output, torch.stack(outputs))
            output = torch.empty(shape, dtype=dtype)
            works = [dist.isend(all_[rank], (rank + 1) % size, tag=3), dist.irecv(output, (rank - 1) % size, tag=3)]
            [work.wait() for work in works]
            checks.same(f"send and receive {name}", output, all_[(rank - 1) % size])
    # Lengths that differ by rank, and none at all.
    counts = [[(source + 2 * target) % 3 for target in everyone] for source in everyone]
    send = torch.cat([torch.full((counts[rank][target], 2), 10.0 * rank + target) for target in everyone])
    output = torch.empty(sum(counts[source][rank] for source in everyone), 2)
    dist.all_to_all_single(output, send, [counts[source][rank] for source in everyone], counts[rank])
    wanted = torch.cat([torch.full((counts[source][rank], 2), 10.0 * source + rank) for source in everyone])
    checks.same("all_to_all_single by split sizes", output, wanted)
    outputs = [torch.empty(each + 1) for each in everyone]
    dist.all_gather(outputs, tensor(rank, (rank + 1,), torch.float32))
    for source in everyone:
        checks.same("all_gather of different lengths", outputs[source], tensor(source, (source + 1,), torch.float32))
    # Memory that is not contiguous.
    wide = torch.zeros(4, 6)
    dist.broadcast(wide[:, ::2], 0) if rank else dist.broadcast(tensor(0, (4, 3), torch.float32), 0)
    checks.same("broadcast to every other column", wide[:, ::2], tensor(0, (4, 3), torch.float32) if rank else torch.zeros(4, 3))
    columns = tensor(rank, (3, 5), torch.float32).t()
    dist.all_reduce(columns)
    checks.same("all_reduce of a transposed tensor", columns, reduced([tensor(e, (3, 5), torch.float32) for e in everyone], "sum").t())
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    checks.count += 1
    if objects != [{"rank": each, "text": "x" * each} for each in everyone]:
        checks.wrong.append(f"all_gather_object: {objects}")
    objects = [rank, "of", size]
    dist.broadcast_object_list(objects, 0)
    checks.count += 1
    if objects != [0, "of", size]:
        checks.wrong.append(f"broadcast_object_list: {objects}")
    return checks.count, checks.wrong


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("check", [check_reductions, check_copies])
def test_every_form_of_every_collective_is_plain_arithmetic(check, size):
    if size == 1 and check is check_copies:
        pytest.skip("SKIP: one rank sends to nobody")
    for count, wrong in results(launch(size, check, limit=120)):
        assert count > 400
        assert not wrong, f"{len(wrong)} of {count}: {wrong[:3]}"


def check_surface(rank: int, size: int, store: str) -> None:
    group = join(rank, size, store)
    other = (rank + 1) % size
    # Coalescing: the operations are waited for at its end, as one.
    tensors = [torch.full((each + 1,), float(rank + 1)) for each in range(3)]
    with dist._coalescing_manager(group, torch.device("cpu"), async_ops=True) as manager:
        for root, each in enumerate(tensors):
            dist.broadcast(each, root % size)
        gathered = torch.empty(2)
        dist.irecv(gathered, (rank - 1) % size)
        dist.isend(torch.full((2,), float(rank)), other)
    manager.wait()
    assert [each.tolist() for each in tensors] == [[1.0 + root % size] * (root + 1) for root in range(3)], tensors
    assert gathered.tolist() == [float((rank - 1) % size)] * 2
    total = size * (size + 1) / 2
    with dist._coalescing_manager(group):
        tensors = [torch.full((each + 1,), float(rank + 1)) for each in range(3)]
        for each in tensors:
            dist.all_reduce(each)
    assert all(torch.equal(each, torch.full_like(each, total)) for each in tensors), tensors
    # Batched messages, receives first.
    got = torch.empty(4)
    batch = [dist.P2POp(dist.irecv, got, (rank - 1) % size), dist.P2POp(dist.isend, torch.full((4,), float(rank)), other)]
    [work.wait() for work in dist.batch_isend_irecv(batch)]
    assert got.tolist() == [float((rank - 1) % size)] * 4
    # From any rank.
    if rank == 0:
        got = torch.empty(1)
        sources = sorted(dist.recv(got) for _ in range(size - 1))
        assert sources == list(range(1, size)), sources
    else:
        dist.send(torch.ones(1), 0)
    # Splitting: the last two ranks, in another order, with a time-out of their own.
    split = dist.split_group(split_ranks=[[size - 1, size - 2]], timeout=timedelta(seconds=7))
    if rank >= size - 2:
        assert split.rank() == size - 1 - rank and split.size() == 2
        assert split._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=7)
        mine = torch.tensor([float(rank)])
        dist.broadcast(mine, size - 1, group=split)
        assert mine.item() == size - 1
        assert dist.get_process_group_ranks(split) == [size - 1, size - 2]
    else:
        assert split is dist.GroupMember.NON_GROUP_MEMBER
    backend = group._get_backend(torch.device("cpu"))
    assert backend.options._timeout == timedelta(seconds=30) and backend.supports_splitting and backend.name() == "allfold"
    # Sequence numbers grow with the calls.
    before = group._get_sequence_number_for_group()
    dist.barrier()
    assert group._get_sequence_number_for_group() == before + 1
    # The short forms of a group's own methods.
    mine = torch.ones(3)
    group.allreduce(mine).wait()
    group.allreduce([mine], ReduceOp.MAX).wait()
    group.broadcast(mine, 0).wait()
    outputs = [torch.empty(3) for _ in range(size)]
    group.allgather(outputs, mine).wait()
    assert all(each.tolist() == [float(size)] * 3 for each in outputs)
    group.barrier().wait()
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    assert future.then(lambda done: done.value()[0].sum().item()).wait() == 2.0 * size

    def chained(_) -> float:
        # Like PowerSGD's hook, this callback waits for another operation.
        mine = torch.ones(1)
        return dist.all_reduce(mine, async_op=True).get_future().then(lambda done: done.value()[0].item()).wait()

    assert dist.all_reduce(torch.ones(1 << 20), async_op=True).get_future().then(chained).wait() == size
    # Sparse sums, and a monitored barrier.
    sparse = torch.sparse_coo_tensor([[rank, 0]], [1.0, 2.0], (size + 1,))
    dist.all_reduce(sparse)
    wanted = torch.zeros(size + 1)
    for each in range(size):
        wanted[each] += 1
    wanted[0] += 2 * size
    assert torch.equal(sparse.to_dense(), wanted), (sparse.to_dense(), wanted)
    dist.monitored_barrier(timeout=timedelta(seconds=20))


@pytest.mark.parametrize("size", [2, 3])
def test_what_pytorch_asks_of_a_group_beside_its_collectives(size):
    results(launch(size, check_surface))


def raised(call, kind: type[BaseException]) -> str:
    """The text of what a call raises, which must be of this kind."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"it raised no {kind.__name__}")


def check_bad_input(rank: int, size: int, store: str) -> list[str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    group = join(rank, size, store)
    mesh = init_device_mesh("cpu", (size,))
    texts = [
        raised(lambda: dist.all_reduce(torch.ones(2, device="meta")), ValueError),
        raised(lambda: dist.broadcast(torch.ones(2, device="meta"), 0), ValueError),
        raised(lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn)), ValueError),
        raised(lambda: dist.all_reduce(torch.ones(2), ReduceOp.BAND), ValueError),
        raised(lambda: dist.broadcast(torch.ones(2), size), ValueError),
        raised(lambda: group.broadcast(torch.ones(2), size), ValueError),
        raised(lambda: dist.all_gather_into_tensor(torch.ones(3 * size), torch.ones(2)), ValueError),
        raised(lambda: dist.reduce_scatter_tensor(torch.ones(3), torch.ones(2 * size)), ValueError),
        raised(lambda: dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1)), ValueError),
        raised(lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [4] * size, [4] * size), ValueError),
        raised(lambda: dist.send(torch.ones(1), rank), ValueError),
        raised(lambda: dist.all_to_all_single(torch.tensor(1.0), torch.tensor(1.0)), ValueError),
        raised(lambda: dist.all_to_all_single(torch.ones(2), torch.ones(2), [1.0, 1.0], [1, 1]), ValueError),
        raised(lambda: dist.all_reduce(distribute_tensor(torch.ones(4), mesh, [Shard(0)])), ValueError),
        raised(lambda: dist.init_process_group("allfold", init_method=f"file://{store}", rank=rank, world_size=size), ValueError),
    ]
    # Nothing was sent, and the group is as before.
    mine = torch.ones(2)
    dist.all_reduce(mine)
    assert mine.tolist() == [size] * 2
    return texts


def test_bad_input_is_refused_by_a_line_and_the_group_stays_usable():
    for texts in results(launch(2, check_bad_input)):
        for text in texts:
            assert text and "\n" not in text, text
        assert "on meta" in texts[0] and "float8_e4m3fn by sum" in texts[2] and "band is for integers" in texts[3], texts[:4]
        assert "at least one dimension" in texts[11] and "whole numbers" in texts[12] and ".to_local()" in texts[13], texts[11:]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="SKIP: no CUDA device: a tensor of the meta device stands for its refusal")
def test_a_cuda_tensor_is_refused():
    from allfold.torch.elements import checked

    assert "on cuda:0" in raised(lambda: checked(torch.ones(1, device="cuda")), ValueError)


def check_fork(rank: int, size: int, store: str) -> str:
    group = join(rank, size, store)
    posted = dist.irecv(torch.empty(1), (rank + 1) % size, tag=9)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        texts = []
        calls = [
            lambda: dist.all_reduce(torch.ones(1)),
            lambda: dist.all_reduce(torch.ones(1), async_op=True),
            lambda: dist.send(torch.ones(1), (rank + 1) % size),
            lambda: dist.recv(torch.ones(1), (rank + 1) % size),
            lambda: posted.wait(),
        ]
        try:
            texts = [raised(call, ValueError) for call in calls]
            group.shutdown()
            del group, posted, calls
        except BaseException as error:  # noqa: BLE001
            texts.append(repr(error))
        os.write(write, "\n".join(texts).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(child, 0)
    # The parent is as before.
    dist.isend(torch.ones(1), (rank + 1) % size, tag=9).wait()
    posted.wait()
    mine = torch.ones(1)
    dist.all_reduce(mine)
    assert mine.item() == size
    return text


def test_a_forked_process_has_no_part_in_the_group():
    for text in results(launch(2, check_fork)):
        lines = text.splitlines()
        assert len(lines) == 5 and all("from which this one was forked" in line for line in lines), text


def interrupted(after: float) -> None:
    """Sends SIGINT to this process after ``after`` seconds."""
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()


def check_interrupt(rank: int, size: int, store: str, how: str) -> float:
    join(rank, size, store)
    if rank == 1:
        # This rank never makes the call that rank 0 waits in; its own next call raises, with the reason.
        time.sleep(4.0)
        if how == "receive":
            return 0.0
        text = raised(lambda: dist.barrier(), RuntimeError)
        assert "rank 0" in text, text
        return 0.0
    hung = dist.all_reduce(torch.ones(1), async_op=True) if how in ("after", "work") else None
    waits = {
        "collective": lambda: dist.all_reduce(torch.ones(1)),
        "after": lambda: dist.all_reduce(torch.ones(1)),
        "work": lambda: hung.wait(),
        "receive": lambda: dist.recv(torch.ones(1), 1),
    }
    begun = time.monotonic()
    interrupted(0.3)
    try:
        waits[how]()
    except KeyboardInterrupt:
        took = time.monotonic() - begun
    else:
        raise AssertionError("Ctrl-C ended nothing")
    if how == "work":
        dist.group.WORLD.abort("rank 0 was interrupted")
    return took


@pytest.mark.parametrize("how", ["collective", "after", "work", "receive"])
def test_ctrl_c_ends_a_wait(how):
    first, _ = launch(2, check_interrupt, how, limit=30)
    assert first.error is None, first
    assert 0.2 < first.value < 3.0, first


def check_asynchronous(rank: int, size: int, store: str) -> None:
    """Rank 1 calls only after rank 0's call has returned."""
    join(rank, size, store)
    blocks = [torch.ones(each + 1) for each in range(size)]
    calls = [
        lambda: dist.reduce_scatter(torch.empty(rank + 1), blocks, async_op=True),
        lambda: dist.all_gather([torch.empty(each + 1) for each in range(size)], torch.ones(rank + 1), async_op=True),
        lambda: dist.all_to_all([torch.empty(1) for _ in range(size)], [torch.ones(1) for _ in range(size)], async_op=True),
        lambda: dist.all_reduce(torch.ones(5), async_op=True),
    ]
    for tag, call in enumerate(calls):
        if rank == 1:
            dist.recv(torch.empty(1), 0, tag=tag)
        work = call()
        if rank == 0:
            assert not work.is_completed()
            dist.send(torch.ones(1), 1, tag=tag)
        work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None


def test_a_call_with_async_op_does_not_wait_for_the_other_ranks():
    results(launch(2, check_asynchronous))


def check_timeouts(rank: int, size: int, store: str) -> list[tuple[float, str]]:
    group = join(rank, size, store)
    told = []

    def late(call, kind=RuntimeError) -> None:
        begun = time.monotonic()
        text = raised(call, kind)
        told.append((time.monotonic() - begun, text))

    if rank == 0:
        late(lambda: dist.recv(torch.empty(1), 1) if group.set_timeout(timedelta(seconds=0.3)) is None else None)
        group.set_timeout(timedelta(seconds=30))
        pending = dist.all_reduce(torch.ones(1), async_op=True)
        late(lambda: pending.wait(timedelta(seconds=0.3)))
        dist.send(torch.ones(1), 1, tag=1)
        pending.wait()  # the operation continued
        opts = dist.AllreduceOptions()
        opts.timeout = timedelta(seconds=0.3)
        late(lambda: group.allreduce([torch.ones(1)], opts).wait())
    else:
        dist.recv(torch.empty(1), 0, tag=1)
        dist.all_reduce(torch.ones(1))
        late(lambda: dist.recv(torch.empty(1), 0, tag=2))
    return told


def test_a_time_out_is_the_groups_the_operations_or_the_waits_own():
    first, second = results(launch(2, check_timeouts))
    assert len(first) == 3 and len(second) == 1
    for seconds, text in first:
        assert 0.25 < seconds < 10 and " timeout " in text, (seconds, text)
    assert "rank 1" in first[0][1] and "rank 1" in first[2][1] and "never entered" in first[2][1], first
    # The group has failed: its other rank gets the error while it waits for a message.
    assert second[0][0] < 10 and "rank 0" in second[0][1], second


def check_bits(rank: int, size: int, store: str) -> int:
    join(rank, size, store)
    generator = torch.Generator().manual_seed(rank)
    whole = torch.randn(100_003, generator=generator) * torch.logspace(-3, 3, 100_003)
    reference = whole.clone()
    dist.all_reduce(reference)
    different = 0
    for bucket in [1, 7, 1000, 4096, 33_333, 65_536]:
        count = min(len(whole), bucket * 40)
        mine = whole[:count].clone()
        for part in mine.split(bucket):
            dist.all_reduce(part)
        different += int((mine != reference[:count]).sum())
        again = whole[:count].clone()
        works = [dist.all_reduce(part, async_op=True) for part in again.split(bucket)]
        [work.wait() for work in works]
        different += int((again != reference[:count]).sum())
    return different


@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_have_the_same_bits_for_any_bucket_size(size):
    assert results(launch(size, check_bits)) == [0] * size


def check_again(rank: int, size: int, store: str) -> None:
    for _ in range(3):
        join(rank, size, store)
        mine = torch.ones(1)
        dist.all_reduce(mine)
        assert mine.item() == size
        dist.destroy_process_group()
        time.sleep(0.2)  # PyTorch's own barrier by the store assumes that ranks do not make a group again at once


def test_a_group_is_made_anew_after_it_was_destroyed():
    results(launch(2, check_again))


def test_another_pytorch_than_the_tested_one_is_named_by_a_warning(tmp_path):
    import subprocess

    code = "import torch; torch.__version__ = '2.99.1'; import allfold.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "allfold.torch was tested with PyTorch 2.15, and this is 2.99.1" in done.stderr
