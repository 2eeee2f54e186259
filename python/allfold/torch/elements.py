"""How tensors lie in memory, and which of Allfold's types and operators carry them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

Place = tuple[int, int, str, Any]
"""Elements in memory: their address, their number, Allfold's name of their type, and the tensor that owns the memory. Whoever has a
place keeps its memory valid."""

_NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
}
# PyTorch's operators by hash: the operator of a call has another type than these constants, and is not equal to them as a key.
_OPS = {
    hash(getattr(dist.ReduceOp, kind)): name
    for kind, name in {
        "SUM": "sum",
        "PRODUCT": "prod",
        "MIN": "min",
        "MAX": "max",
        "AVG": "avg",
        "BAND": "band",
        "BOR": "bor",
        "BXOR": "bxor",
        "PREMUL_SUM": "premul_sum",
    }.items()
}
# Unsigned types that are summed and multiplied as the signed type of the same width: the result's bits are the same.
_SIGNED = {torch.uint16: "i16", torch.uint32: "i32", torch.uint64: "i64"}
# Reductions of truth values, by those of the numbers 0 and 1.
_TRUTH = {"sum": "max", "prod": "min", "min": "min", "max": "max", "band": "min", "bor": "max"}
NOTHING: Place = (0, 0, "u8", None)
# Operators by which every type that Allfold has is reduced.
NUMERIC = frozenset(("sum", "prod", "min", "max", "avg"))


def checked(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, if this backend carries it; otherwise raises ``ValueError``."""
    if tensor.device.type != "cpu":
        raise ValueError(
            f"the backend allfold carries tensors of the CPU, and this one is on {tensor.device}: "
            "call .cpu() first, or give that device a backend of its own, such as nccl"
        )
    if tensor.layout is not torch.strided:
        raise ValueError(f"the backend allfold carries dense tensors here, and this one is {tensor.layout}: call .to_dense() first")
    if tensor.numel() and not tensor.data_ptr():
        if type(tensor) in (torch.Tensor, torch.nn.Parameter):
            why = "it was freed, as FSDP frees parameters that are not in use"
        else:
            why = f"{type(tensor).__name__} is a type of tensor that holds other tensors or none; of a DTensor pass .to_local()"
        raise ValueError(f"this tensor of {tensor.numel()} elements has no memory of its own: {why}")
    return tensor


def plain(tensor: torch.Tensor) -> Place | None:
    """The memory of a tensor that needs no copy: as ``dense`` returns it, and of a type that Allfold has. ``None`` for any other
    tensor."""
    name = _NAMES.get(tensor.dtype)
    if name is None or not tensor.is_cpu or tensor.layout is not torch.strided or not _is_dense(tensor):
        return None
    return tensor.data_ptr(), tensor.numel(), name, tensor


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory is contiguous and aligned, and holds the values themselves, not their negatives or conjugates."""
    address = tensor.data_ptr()
    if not address or address & 15 and address % tensor.element_size():
        return False
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def fits(part: Place | None, whole: Place | None, ranks: int) -> bool:
    """Whether ``whole`` has a block of the size and type of ``part`` for each rank."""
    return part is not None and whole is not None and whole[1] == part[1] * ranks and whole[2] == part[2]


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor with these elements: itself, or a copy."""
    checked(tensor)
    # A new tensor has its values as they are; `clone` alone would keep a pending negation.
    return tensor if _is_dense(tensor) else torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, if this backend carries it and can write a result to it; otherwise raises ``ValueError``."""
    if not checked(tensor).is_contiguous() and torch._debug_has_internal_overlap(tensor) == 1:
        raise ValueError(
            f"a result cannot be written to a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()}: several of its elements "
            "share one place in memory, as after expand; call .clone() first"
        )
    return tensor


def room(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous memory for a result that belongs into ``tensor``: the tensor itself, or a copy, which ``back`` copies to it."""
    return dense(writable(tensor))


def put(tensors: Iterable[torch.Tensor], values: Iterable[torch.Tensor]) -> None:
    """Copies results to their tensors, which autograd does not record, as it does not record results that are written in place."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values):
            tensor.copy_(value.view(tensor.shape))


def back(tensor: torch.Tensor, result: torch.Tensor) -> Callable[[], None] | None:
    """What copies a result from the contiguous memory of ``room`` to its tensor; ``None`` where they are the same."""
    return None if result is tensor else lambda: put([tensor], [result])


def place(tensor: torch.Tensor) -> Place:
    """The memory of a contiguous tensor, as elements of its type or, where Allfold has no such type, as bytes."""
    name = _NAMES.get(tensor.dtype)
    if name is not None:
        return tensor.data_ptr(), tensor.numel(), name, tensor
    return tensor.data_ptr(), tensor.numel() * tensor.element_size(), "u8", tensor


def operator(op: dist.ReduceOp) -> str:
    """The name of an operator that a group reduces by."""
    name = _OPS.get(hash(op))
    if name is None:
        raise ValueError(f"the backend allfold has no operator {op}")
    if name == "premul_sum":
        raise ValueError("the backend allfold has no PREMUL_SUM: multiply the tensor before the reduction by SUM")
    return name


def reducible(tensor: torch.Tensor, op: str) -> tuple[Place, str] | None:
    """The memory of a contiguous tensor for a reduction, and the operator for it; ``None`` where Allfold has no such
    reduction, and the ranks gather and reduce it themselves."""
    dtype = tensor.dtype
    name = _NAMES.get(dtype)
    if name is not None and op in NUMERIC:
        return (tensor.data_ptr(), tensor.numel(), name, tensor), op
    if dtype is torch.bool and op in _TRUTH:
        return (tensor.data_ptr(), tensor.numel(), "u8", tensor), _TRUTH[op]
    if dtype in _SIGNED and op in ("sum", "prod"):
        return (tensor.data_ptr(), tensor.numel(), _SIGNED[dtype], tensor), op
    if dtype.is_complex and op in ("sum", "avg"):
        parts = torch.view_as_real(tensor)
        if parts.dtype in _NAMES:
            return (parts.data_ptr(), parts.numel(), _NAMES[parts.dtype], parts), op
    _tried(dtype, op)
    return None


@lru_cache(maxsize=256)
def _tried(dtype: torch.dtype, op: str) -> None:
    """Reduces two elements of this type, so that a type which PyTorch cannot reduce is refused before anything is sent."""
    try:
        fold(torch.zeros(2, 1).to(dtype), op)
    except (RuntimeError, TypeError):
        raise ValueError(
            f"the backend allfold cannot reduce elements of {dtype} by {op}: convert the tensor first, to torch.float32 for example"
        ) from None


def fold(parts: torch.Tensor, op: str) -> torch.Tensor:
    """The reduction of ``parts`` along its first dimension, in order of ranks."""
    if op in ("band", "bor", "bxor"):
        if parts.is_floating_point() or parts.is_complex():
            raise ValueError(f"{op} is for integers and truth values, and these elements are {parts.dtype}")
        step = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}[op]
    elif op in ("sum", "prod", "min", "max"):
        step = {"sum": torch.add, "prod": torch.mul, "min": torch.minimum, "max": torch.maximum}[op]
    else:
        raise ValueError(f"the backend allfold cannot reduce elements of {parts.dtype} by {op}")
    total = parts[0].clone()
    for part in parts[1:]:
        total = step(total, part)
    return total
