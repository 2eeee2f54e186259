"""PyTorch's block that coalesces operations, ``_coalescing_manager``, which ``batch_isend_irecv`` uses too.

Where an exception ends the block, PyTorch keeps the group in the state of the block: later operations of the group are collected, and
never run. Here a group of Allfold leaves that state. None of the block's operations has begun then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed.distributed_c10d as c10d

from .group import AllfoldGroup


def _left_on_error(managed: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """The generator function of PyTorch's context manager, whose groups leave the block on an exception."""

    @functools.wraps(managed)
    def manager(group: Any = None, *arguments: Any, **named: Any) -> Iterator[Any]:
        group = group or c10d._get_default_group()
        try:
            yield from managed(group, *arguments, **named)
        except BaseException:
            if isinstance(group, AllfoldGroup):
                c10d._world.pg_coalesce_state.pop(group, None)
                group.drop_coalesced()
            raise

    return manager


def install() -> None:
    """Changes PyTorch's context manager. A program may have imported it: the function that it wraps is replaced, not the name."""
    wrapped = c10d._coalescing_manager.__closure__[0]
    wrapped.cell_contents = _left_on_error(wrapped.cell_contents)
