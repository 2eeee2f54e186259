"""Collectives between processes on the caller's own memory: every type and collective, without copies, and what is refused."""

import array
import ctypes
import os
import signal
import threading
import time

import numpy
import pytest

import allfold
from allfold._allfold import NativeCommunicator

DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8"]
OPS = {
    "sum": lambda rows: rows.sum(0),
    "prod": lambda rows: rows.prod(0),
    "min": lambda rows: rows.min(0),
    "max": lambda rows: rows.max(0),
    "avg": lambda rows: rows.sum(0) / len(rows),
}


def values(rank, count, dtype):
    """Small whole numbers, so that every order of additions gives the same."""
    return ((numpy.arange(count) * 7 + rank * 3) % 5).astype(dtype)


def rows(size, count, dtype):
    return numpy.stack([values(rank, count, dtype) for rank in range(size)])


def check_collectives(comm, dtype, count):
    """Compares every collective on this type with NumPy. Returns how many results were compared."""
    compared = 0
    rank, size = comm.rank, comm.size
    mine, every = values(rank, count, dtype), rows(size, count, dtype)
    wide, wides = values(rank, count * size, dtype), rows(size, count * size, dtype)

    def same(got, expected):
        nonlocal compared
        assert got.dtype == numpy.dtype(dtype)
        numpy.testing.assert_array_equal(got, expected.astype(dtype))
        compared += 1

    for op, reduced in OPS.items():
        if op == "avg" and not numpy.issubdtype(numpy.dtype(dtype), numpy.floating):
            continue
        expected = reduced(every.astype("float64"))
        exact = op != "avg"
        got = comm.all_reduce(mine.copy(), op)
        same(got, expected) if exact else numpy.testing.assert_allclose(got, expected, rtol=1e-2)
        apart, source = numpy.empty_like(mine), mine.copy()
        assert comm.all_reduce(source, op, out=apart) is apart
        numpy.testing.assert_array_equal(source, mine)
        numpy.testing.assert_array_equal(apart, got)
    for root in range(size):
        same(comm.broadcast(mine.copy(), root), every[root])
        got = comm.reduce(mine.copy(), root)
        if rank == root:
            same(got, every.sum(0))
        got = comm.gather(mine, root=root)
        if rank == root:
            same(got, every)
        else:
            assert got is mine
        out = numpy.empty_like(mine)
        same(comm.scatter(wide if rank == root else None, out, root), wides[root].reshape(size, count)[rank])
    same(comm.all_gather(mine), every)
    out = numpy.empty_like(mine)
    same(comm.reduce_scatter(wide, out), wides.sum(0).reshape(size, count)[rank])
    out = numpy.empty_like(wide)
    same(comm.all_to_all(wide, out), wides.reshape(size, size, count)[:, rank].reshape(-1))
    comm.barrier()
    return compared


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_collective_on_every_type(ranks):
    for of_rank in allfold.run(ranks, check_all):
        assert of_rank == {dtype: of_rank["float64"] for dtype in DTYPES} and of_rank["float64"] >= 11


def check_all():
    with allfold.Communicator() as comm:
        return {dtype: check_collectives(comm, dtype, 1001) for dtype in DTYPES}


def what_lends_memory():
    """Memory of several kinds of objects, each changed in place."""
    with allfold.Communicator() as comm:
        plain = array.array("d", [1.0, 2.0])
        address = plain.buffer_info()[0]
        comm.all_reduce(plain)
        assert plain.tolist() == [2.0, 4.0] and plain.buffer_info()[0] == address

        raw = bytearray(b"\x01\x02\x03")
        comm.all_reduce(memoryview(raw)[1:])
        assert raw == b"\x01\x04\x06"

        whole = numpy.ones((4, 3), numpy.float32)
        before = whole.__array_interface__["data"]
        comm.all_reduce(whole[1:3])
        assert whole.tolist() == [[1.0] * 3, [2.0] * 3, [2.0] * 3, [1.0] * 3]
        assert whole.__array_interface__["data"] == before

        c = (ctypes.c_int32 * 2)(5, 6)
        comm.all_reduce(c)
        assert list(c) == [10, 12]

        only = OnlyDlpack(numpy.ones(3))
        comm.all_reduce(only)
        assert only.array.tolist() == [2.0] * 3

        flags = numpy.array([comm.rank == 0, False])
        comm.all_reduce(flags, "max")
        assert flags.dtype == bool and flags.tolist() == [True, False]

        none = numpy.empty(0)
        comm.all_reduce(none)
        # The input is a block of the output array.
        every = numpy.full(2, -1.0)
        every[comm.rank] = comm.rank
        comm.all_gather(every[comm.rank : comm.rank + 1], out=every)
        assert every.tolist() == [0.0, 1.0]
    return "done"


class OnlyDlpack:
    """An object with DLPack and without the buffer protocol."""

    def __init__(self, array, versioned=True):
        self.array = array
        self.versioned = versioned

    def __dlpack__(self, **how):
        if how and not self.versioned:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        return self.array.__dlpack__(**how)


def test_memory_is_lent_by_buffers_and_dlpack():
    assert allfold.run(2, what_lends_memory) == ["done"] * 2


@pytest.mark.parametrize("versioned", [True, False])
def test_an_address_is_that_of_the_object(versioned):
    mine = numpy.arange(12.0).reshape(3, 4)
    expected = (mine.ctypes.data, 12, "f64")
    assert NativeCommunicator.place(mine, True)[:3] == expected
    assert NativeCommunicator.place(OnlyDlpack(mine, versioned), True)[:3] == expected
    assert NativeCommunicator.place(OnlyDlpack(mine[1:], versioned), False)[:3] == (mine[1:].ctypes.data, 8, "f64")


def test_lent_memory_stays_where_it_is_until_its_place_is_dropped():
    mine = bytearray(64)
    lent = NativeCommunicator.place(mine, True)
    with pytest.raises(BufferError):
        mine.extend(bytes(1 << 20))
    del lent
    mine.extend(bytes(1 << 20))
    # An object may lend a copy, which nobody but the capsule keeps.
    lent = NativeCommunicator.place(OnlyDlpack(numpy.full(1000, 3.0)), False)
    filled = [numpy.full(1000, 9.0) for _ in range(16)]
    assert ctypes.c_double.from_address(lent[0]).value == 3.0 and len(filled) == 16


def test_a_tensor_of_pytorch_is_lent_where_it_is():
    torch = pytest.importorskip("torch")
    for dtype, name in [(torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.bool, "u8"), (torch.int64, "i64")]:
        tensor = torch.ones(5, dtype=dtype)
        assert NativeCommunicator.place(tensor, True)[:3] == (tensor.data_ptr(), 5, name)
    with pytest.raises(BufferError, match="not contiguous"):
        NativeCommunicator.place(torch.ones(4, 4).t()[1:], True)
    with pytest.raises(BufferError, match="require gradient"):
        NativeCommunicator.place(torch.ones(4, requires_grad=True), True)


def test_memory_that_cannot_be_used_is_refused_in_one_line():
    fixed = numpy.ones(3)
    fixed.flags.writeable = False
    place = NativeCommunicator.place
    assert place(fixed, False)[1:3] == (3, "f64")
    for error, given, writes, said in [
        (BufferError, fixed, True, "this ndarray is read-only, and the result is written to it"),
        (BufferError, OnlyDlpack(fixed), True, "this OnlyDlpack is read-only, and the result is written to it"),
        (BufferError, b"bytes", True, "this bytes is read-only"),
        (BufferError, numpy.ones((4, 4))[:, 1], False, "not contiguous; give numpy.ascontiguousarray of it"),
        (BufferError, OnlyDlpack(numpy.ones((4, 4)).T[1:]), False, "not contiguous"),
        (TypeError, numpy.ones(2, "complex64"), False, "no elements of format `Zf` and 8 bytes; it has f64, f32"),
        (TypeError, numpy.ones(2, ">f8"), False, "no elements of format `>d`"),
        (TypeError, OnlyDlpack(numpy.ones(2, "uint32")), False, "no elements of DLPack's type code 1 with 32 bits"),
        (TypeError, [1.0, 2.0], False, "a list lends no memory: give an array with the buffer protocol or DLPack"),
    ]:
        with pytest.raises(error) as refused:
            place(given, writes)
        assert said in str(refused.value) and "\n" not in str(refused.value)


def wrong_arguments():
    """Each call is refused on its own rank before anything is sent: the group stays usable."""
    with allfold.Communicator() as comm:
        four = numpy.ones(4)
        for error, call, said in [
            (ValueError, lambda: comm.all_reduce(four, "add"), "there is no operator add; there are sum"),
            (ValueError, lambda: comm.broadcast(four, root=2), "2"),
            (ValueError, lambda: comm.all_reduce(four, out=numpy.ones(4, "float32")), "elements of f64, and the output of f32"),
            (ValueError, lambda: comm.all_gather(four, out=numpy.ones(7)), "7"),
            (ValueError, lambda: comm.reduce_scatter(four, out=numpy.ones(3)), "3"),
            (ValueError, lambda: comm.use("all_reduce", "rign"), "ring"),
            (ValueError, lambda: comm.empty(3, "bf16"), "NumPy has no elements of type bf16"),
            (BufferError, lambda: comm.all_reduce(b"1234"), "read-only"),
        ]:
            with pytest.raises(error) as refused:
                call()
            assert said in str(refused.value), (said, str(refused.value))
            assert "\n" not in str(refused.value)
        return comm.all_reduce(four).tolist()


def test_wrong_arguments_are_refused_before_anything_is_sent():
    assert allfold.run(2, wrong_arguments) == [[2.0] * 4] * 2


def registered():
    with allfold.Communicator() as comm:
        shared = comm.empty((2, 500), "i32")
        assert shared.dtype == numpy.int32 and shared.shape == (2, 500) and not shared.any()
        shared += comm.rank + 1
        address = shared.ctypes.data
        comm.all_reduce(shared)
        assert shared.ctypes.data == address and (shared == 3).all()
        whole = comm.registered(64)
        numpy.frombuffer(whole, "int8")[:] = comm.rank + 1
        comm.all_reduce(whole)
        assert bytes(whole) == b"\x03" * 64
        view = shared[1]
        del shared
        # The memory lives as long as any array over it.
        assert (view == 3).all()
        return comm.shares_memory


def test_registered_memory_is_an_array():
    assert allfold.run(2, registered) == [True, True]


def asynchronous():
    with allfold.Communicator() as comm:
        arrays = [numpy.full(1000, float(k)) for k in range(8)]
        works = [comm.all_reduce(array, async_op=True) for array in arrays]
        for k, work in enumerate(works):
            assert work.wait(timeout=30) is arrays[k] and work.is_done()
            assert (arrays[k] == 2 * k).all()
        late = numpy.ones(4)
        if comm.rank == 0:
            work = comm.all_reduce(late, async_op=True)
            # Rank 1 waits for this rank's message before it joins in.
            with pytest.raises(TimeoutError, match="it goes on"):
                work.wait(timeout=0.05)
            comm.send(numpy.zeros(1), to=1)
            work.wait()
        else:
            comm.recv(numpy.zeros(1), source=0)
            comm.all_reduce(late)
        return late.tolist()


def test_operations_are_issued_and_waited_for():
    assert allfold.run(2, asynchronous) == [[2.0] * 4] * 2


def messages():
    with allfold.Communicator() as comm:
        got = numpy.zeros(3)
        if comm.rank == 2:
            sources = []
            for _ in range(2):
                sources.append(comm.recv(got))
                assert (got == sources[-1]).all()
            with pytest.raises(allfold.DeadlineError):
                comm.recv(got, source=0, tag=9, timeout=0.1)
            for to in range(2):
                comm.send(got, to)
            return sorted(sources)
        comm.send(numpy.full(3, float(comm.rank)), to=2)
        # This rank stays until rank 2 has received.
        comm.recv(got, source=2)
        return None


def test_messages_come_from_a_rank_or_from_any():
    assert allfold.run(3, messages)[2] == [0, 1]


def counts_while_waiting():
    """Another thread of Python runs while a rank waits for others."""
    with allfold.Communicator() as comm:
        gate, counted = threading.Event(), []

        def count():
            gate.wait()
            # Rank 0 waits in its call; rank 1 makes the call only after this thread's message.
            counted.append(sum(range(1000)))
            comm.send(numpy.ones(1), to=1)

        one = numpy.ones(1)
        if comm.rank == 0:
            thread = threading.Thread(target=count)
            thread.start()
            gate.set()
            comm.all_reduce(one)
            thread.join()
            assert counted == [499500]
        else:
            comm.recv(numpy.zeros(1), source=0)
            comm.all_reduce(one)
        return one.tolist()


def test_the_interpreter_is_released_while_a_rank_waits():
    assert allfold.run(2, counts_while_waiting) == [[2.0]] * 2


def interrupted():
    with allfold.Communicator() as comm:
        if comm.rank == 0:
            main = threading.get_ident()
            threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
            begun = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                # The other rank never makes this call.
                comm.all_reduce(numpy.ones(4))
            return time.monotonic() - begun
        with pytest.raises(allfold.AllfoldError, match="rank 0") as told:
            # Nothing is sent: rank 0 is interrupted.
            comm.recv(numpy.zeros(1), source=0, timeout=60)
        return str(told.value)


def test_ctrl_c_ends_a_wait_and_the_others_are_told():
    seconds, told = allfold.run(2, interrupted)
    assert "KeyboardInterrupt" in told
    print(f"Ctrl-C ended the wait after {seconds:.2f} s")


def disagreeing():
    with allfold.Communicator() as comm:
        with pytest.raises(allfold.MismatchError) as told:
            comm.all_reduce(numpy.ones(4 + comm.rank // 2))
        # The group has failed.
        with pytest.raises(allfold.AllfoldError):
            comm.barrier()
        return str(told.value)


def test_ranks_that_disagree_are_all_told():
    for line in allfold.run(3, disagreeing):
        assert "rank 2" in line and "4" in line and "5" in line and "\n" not in line


def leaving():
    comm = allfold.Communicator()
    if comm.rank == 1:
        comm.close()
        with pytest.raises(ValueError, match="closed"):
            comm.barrier()
        return "left"
    with pytest.raises(allfold.PeerLostError, match="rank 1") as lost:
        comm.barrier()
    return lost.value.rank


def test_a_rank_that_leaves_is_named():
    assert allfold.run(2, leaving) == [1, "left"]


def forked():
    with allfold.Communicator() as comm:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                comm.barrier()
            except ValueError as error:
                code = 0 if "forked" in str(error) else 2
            os._exit(code)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        comm.barrier()
        return ended


def test_a_forked_process_is_told_to_join_again():
    assert allfold.run(2, forked) == [0, 0]


def test_without_a_launcher_the_environment_is_explained(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="launch"):
        allfold.Communicator()


def joins_twice():
    with allfold.Communicator() as comm:
        with pytest.raises(ValueError, match="has joined the launcher's world already"):
            allfold.Communicator()
        comm.barrier()
        return "done"


def test_a_process_that_joins_again_is_told_at_once():
    assert allfold.run(2, joins_twice) == ["done"] * 2
