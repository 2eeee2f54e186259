"""The arguments of a call besides its tensors, in each of the forms in which ``torch.distributed`` passes them."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

Tensors = list[torch.Tensor]


@dataclasses.dataclass(slots=True)
class Options:
    """The fields that all of c10d's option objects have in common, under c10d's names."""

    reduceOp: Any = dist.ReduceOp.SUM  # noqa: N815
    rootRank: int = 0  # noqa: N815
    asyncOp: bool = True  # noqa: N815
    timeout: timedelta | None = None


def options(*given: Any) -> Any:
    """An option object of c10d as it is; or one made of a root, an operator and a time-out, which c10d's short forms pass."""
    for value in given:
        if hasattr(value, "asyncOp"):
            return value
    made = Options()
    for value in given:
        if value is None:
            continue
        if isinstance(value, timedelta):
            made.timeout = value
        elif isinstance(value, int):
            made.rootRank = value
        else:
            made.reduceOp = value
    return made


def tensors(given: torch.Tensor | Tensors) -> Tensors:
    """A list of tensors: a single one stands for a list of one."""
    return [given] if isinstance(given, torch.Tensor) else given


def seconds(timeout: Any) -> float:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
