"""The ``Backend`` of a group, for callers that request one, such as PyTorch's C++ code. The backend calls the group."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import Backend

if TYPE_CHECKING:
    from .group import AllfoldGroup


class Delegate(Backend):
    """The backend of a group for one device type: the group itself does the work."""

    def __init__(self, group: AllfoldGroup) -> None:
        super().__init__(group.rank(), group.size())
        self._group = weakref.ref(group)

    def getBackendName(self) -> str:  # noqa: N802
        return "allfold"

    name = getBackendName

    # PyTorch reads these properties of a backend written in Python; the inherited ones would call themselves endlessly.
    supports_coalescing = property(lambda _: True)
    supports_splitting = property(lambda _: True)
    supports_shrinking = property(lambda _: False)
    supports_reconfigure = property(lambda _: False)
    supports_window = property(lambda _: False)
    _supports_time_estimate = property(lambda _: False)

    @property
    def options(self) -> Backend.Options:
        """The options of the group as they are now; ``_timeout`` is the one that a split-off group takes over."""
        group = self._group()
        return Backend.Options("allfold", timeout=timedelta(seconds=group.timeout))

    def eager_connect_single_device(self, device: Any = None) -> None:
        """Nothing is left to connect: a group's ranks are connected when it is made."""

    def _set_sequence_number_for_group(self) -> None:
        """Nothing is set: every rank counts from zero."""

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._group().set_timeout(timeout)


def _delegated(name: str) -> Callable:
    def call(self: Delegate, *arguments: Any, **named: Any) -> Any:
        return getattr(self._group(), name)(*arguments, **named)

    return call


for _name in (
    "allreduce allreduce_coalesced broadcast allgather _allgather_base allgather_coalesced all_gather_single "
    "all_gather_single_coalesced reduce_scatter _reduce_scatter_base reduce_scatter_single reduce_scatter_single_coalesced reduce "
    "gather gather_single scatter alltoall alltoall_base all_to_all_single send recv recv_anysource barrier monitored_barrier "
    "set_timeout abort shutdown _start_coalescing _end_coalescing _get_sequence_number_for_group"
).split():
    setattr(Delegate, _name, _delegated(_name))
