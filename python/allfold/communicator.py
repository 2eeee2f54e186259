"""A rank's handle on its group: collectives on arrays."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ._allfold import NativeCommunicator, NativeWork, PostedReceive, prepare_algorithm

if TYPE_CHECKING:
    import numpy

_SIZES = {"f64": 8, "f32": 4, "f16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1}
_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16"}
_NAMES |= {"i8": "int8", "u8": "uint8"}


class Work:
    """An operation that need not be done yet. Until it is done, its arrays must not be read or written."""

    def __init__(self, native: NativeWork, result: Any) -> None:
        self._native = native
        self._result = result

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the operation is done, at most ``timeout`` seconds; returns the array with the result.

        Raises:
            TimeoutError: the operation is not done yet; the operation continues.
            AllfoldError: the operation failed, on all ranks of the group.
        """
        self._native.wait(timeout)
        return self._result

    def is_done(self) -> bool:
        """Whether :meth:`wait` would return at once."""
        return self._native.is_done()


class Communicator:
    """This process as a rank of the world that a launcher started: ``allfold launch``, ``torchrun``, Slurm, ``mpirun``, or
    :func:`allfold.run`. A process joins once.

    Arrays are NumPy's, or any other object with contiguous memory of the CPU and the buffer protocol or DLPack; they are read and
    written in place. Types: float64, float32, float16, bfloat16 (by DLPack), int8 to int64, uint8, and bool as uint8.
    The interpreter is released while a rank waits, and Ctrl-C ends the wait.

    Every rank makes the same calls in the same order, with equal counts, types, operators (``"sum"``, ``"prod"``, ``"min"``,
    ``"max"``, ``"avg"``) and roots. Where ranks disagree, all of them get :class:`MismatchError`.

    Every method that communicates raises :class:`AllfoldError` where the group has failed, with the rank at fault in its text, and
    ``ValueError`` where its own arguments are wrong, in which case nothing was sent.
    """

    # The process that has joined the launcher's world; a forked one has not.
    _joined: int | None = None

    def __init__(self, _native: NativeCommunicator | None = None) -> None:
        if _native is None and Communicator._joined == os.getpid():
            raise ValueError("this process has joined the launcher's world already, and joins once: use that Communicator")
        self._native = _native or NativeCommunicator.from_env()
        if _native is None and self._native.size > 1:
            Communicator._joined = os.getpid()
        # Taken now: a later call of `messages` would wait for operations that are under way.
        self._messages = self._native.messages()

    @property
    def rank(self) -> int:
        """This rank's number, from 0 and below :attr:`size`."""
        return self._native.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._native.size

    @property
    def shares_memory(self) -> bool:
        """Whether all ranks are on one host and collectives use its shared memory."""
        return self._native.shares_memory

    def __repr__(self) -> str:
        return f"<Communicator: rank {self.rank} of {self.size}>"

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, collective: str, source: Any, target: Any, op: str, root: int, async_op: bool) -> Any:
        result = target if target is not None else source
        if not async_op:
            self._native.run_objects(collective, source, target, op, root)
            return result
        return Work(self._native.issue_objects(collective, source, target, op, root), result)

    def all_reduce(self, array: Any, op: str = "sum", out: Any = None, async_op: bool = False) -> Any:
        """The reduction of all ranks' ``array``: in ``array`` itself, or in ``out``, which has its length."""
        if out is None:
            return self._call("all_reduce", None, array, op, 0, async_op)
        return self._call("all_reduce", array, out, op, 0, async_op)

    def broadcast(self, array: Any, root: int = 0, async_op: bool = False) -> Any:
        """``array`` of rank ``root``, in ``array`` of every rank."""
        return self._call("broadcast", None, array, "sum", root, async_op)

    def all_gather(self, block: Any, out: Any = None, async_op: bool = False) -> Any:
        """All ranks' ``block`` in order of ranks, in ``out``, which is ``size`` times as long; NumPy's by default."""
        out = self._blocks(block) if out is None else out
        return self._call("all_gather", block, out, "sum", 0, async_op)

    def reduce_scatter(self, array: Any, out: Any, op: str = "sum", async_op: bool = False) -> Any:
        """This rank's block of the reduction of all ranks' ``array``, in ``out``; ``array`` is ``size`` times as long."""
        return self._call("reduce_scatter", array, out, op, 0, async_op)

    def all_to_all(self, array: Any, out: Any, async_op: bool = False) -> Any:
        """Block r of ``array`` is sent to rank r; block r of ``out`` is what rank r sent. Both have ``size`` equal blocks."""
        return self._call("all_to_all", array, out, "sum", 0, async_op)

    def reduce(self, array: Any, root: int = 0, op: str = "sum", async_op: bool = False) -> Any:
        """The reduction of all ranks' ``array``, in ``array`` of rank ``root``; elsewhere ``array`` is used as scratch."""
        return self._call("reduce", None, array, op, root, async_op)

    def gather(self, block: Any, out: Any = None, root: int = 0, async_op: bool = False) -> Any:
        """All ranks' ``block`` in order of ranks, in ``out`` of rank ``root``; the other ranks pass no ``out``."""
        if out is None and self.rank == root:
            out = self._blocks(block)
        return self._call("gather", block, out, "sum", root, async_op)

    def scatter(self, array: Any, out: Any, root: int = 0, async_op: bool = False) -> Any:
        """Block r of rank ``root``'s ``array``, in ``out`` of rank r; the other ranks pass ``None`` for ``array``."""
        return self._call("scatter", array, out, "sum", root, async_op)

    def barrier(self) -> None:
        """Returns once every rank has called it."""
        self._native.run_objects("barrier", None, None, "sum", 0)

    def send(self, array: Any, to: int, tag: int = 0) -> None:
        """Sends a copy of ``array`` to rank ``to``: the call does not wait for the receiver."""
        self._messages.send(to, tag, self._native.place(array, False))

    def recv(self, array: Any, source: int | None = None, tag: int = 0, timeout: float = 300.0) -> int:
        """Receives into ``array`` what rank ``source``, or any rank, sends with this tag; returns the source.

        Raises:
            DeadlineError: no message arrived within ``timeout`` seconds.
            PeerLostError: the source has left.
        """
        posted: PostedReceive = self._messages.receive(source, tag)
        return posted.wait(self._native.place(array, True), timeout)

    def empty(self, shape: int | tuple[int, ...], dtype: str = "f32") -> numpy.ndarray:
        """A NumPy array in registered memory, all bits zero: ranks of one host read and write it in place, several times as fast
        for large arrays, where all ranks pass such arrays. ``dtype`` is a name of Allfold's: ``"f32"``, ``"i64"``, ..
        """
        import math

        import numpy

        if dtype not in _SIZES:
            raise ValueError(f"NumPy has no elements of type {dtype}; there are {', '.join(_SIZES)}")
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        count = math.prod(shape)
        memory = self.registered(count * _SIZES[dtype])
        return numpy.frombuffer(memory, dtype=_NAMES[dtype], count=count).reshape(shape)

    def registered(self, size: int) -> Any:
        """Registered memory of ``size`` bytes, as an object with the buffer protocol."""
        import ctypes

        native = self._native.register(max(size, 1))
        memory = (ctypes.c_byte * native.bytes).from_address(native.address)
        memory._owner = native  # type: ignore[attr-defined]  # freed with the last array that shows it
        return memory

    def use(self, collective: str, algorithm: str) -> None:
        """Runs a collective by the algorithm of this name from now on; every rank must choose the same.

        Raises:
            ValueError: the collective has no such algorithm.
            Exception: what the function of an algorithm made by :func:`allfold.algorithm` raised.
        """
        prepare_algorithm(collective, algorithm, self.size)
        self._native.use_algorithm(collective, algorithm)

    def abort(self, why: str) -> None:
        """Fails the group: operations under way on any rank, and all later calls, raise :class:`AbortedError`."""
        self._native.abort(why)

    def close(self) -> None:
        """Leaves the group. Operations in which other ranks still need this one fail."""
        self._native.close()

    def _blocks(self, block: Any) -> Any:
        import numpy

        block = numpy.asarray(block)
        return numpy.empty((self.size, *block.shape), block.dtype)
