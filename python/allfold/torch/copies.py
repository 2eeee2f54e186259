"""The copies of a group: broadcast, all_gather, gather, scatter, all_to_all, in all their forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import Work

from .elements import NOTHING, back, dense, fits, place, plain, put, room, writable
from .options import Tensors, options, tensors
from .work import Plan

if TYPE_CHECKING:
    from .group import AllfoldGroup


def _lists(given: Tensors | list[Tensors]) -> list[Tensors]:
    """A list of lists of tensors, also where it is given as a list, as in c10d's short forms."""
    return [given] if given and isinstance(given[0], torch.Tensor) else given


class Copies:
    """The collectives of a group that copy: a mixin of ``AllfoldGroup``, which sets the attributes used here."""

    def broadcast(self: AllfoldGroup, sources: torch.Tensor | Tensors, opts: Any = None, timeout: Any = None, root: Any = None) -> Work:
        sources, opts = tensors(sources), options(opts, root, timeout)
        root = self._root(opts.rootRank)
        done = self._now(opts, "broadcast", NOTHING, plain(sources[0]), root=root)
        return done or self._do(opts, self._broadcast(sources[0], root, sources))

    def _broadcast(self: AllfoldGroup, tensor: torch.Tensor, root: int, result: Tensors) -> Plan:
        mine = root == self._rank
        flat = dense(tensor) if mine else room(tensor)
        return Plan("broadcast", NOTHING, place(flat), result, root=root, finish=None if mine else back(tensor, flat))

    def all_gather_single(self: AllfoldGroup, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        opts = options(opts)
        part, whole = plain(source), plain(output)
        done = fits(part, whole, self._size) and self._now(opts, "all_gather", part, whole)
        return done or self._do(opts, self._all_gather(output, source, [output]))

    _allgather_base = all_gather_single

    def _all_gather(self: AllfoldGroup, output: torch.Tensor, source: torch.Tensor, result: Tensors) -> Plan:
        if output.numel() != source.numel() * self._size or source.dtype != output.dtype:
            raise ValueError(
                f"all_gather takes an output of {self._size} times the input: {self._size} x {source.numel()} elements of "
                f"{source.dtype}, not {output.numel()} of {output.dtype}"
            )
        target = room(output)
        return Plan("all_gather", place(dense(source)), place(target), result, finish=back(output, target))

    def all_gather_single_coalesced(self: AllfoldGroup, outputs: Tensors, sources: Tensors, opts: Any = None) -> Work:
        pairs = zip(outputs, sources, strict=True)
        return self._do_all(options(opts), [self._all_gather(output, source, [output]) for output, source in pairs], outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(
        self: AllfoldGroup, outputs: Tensors | list[Tensors], sources: torch.Tensor | Tensors, opts: Any = None, timeout: Any = None
    ) -> Work:
        opts, blocks, source = options(opts, timeout), _lists(outputs)[0], tensors(sources)[0]
        if len(blocks) != self._size:
            raise ValueError(f"all_gather takes one output for each of the {self._size} ranks, not {len(blocks)}")
        if all(block.numel() == source.numel() for block in blocks):
            return self._do(opts, self._all_gather_list(blocks, source))
        mine = blocks[self._rank]
        if mine.numel() != source.numel():
            raise ValueError(f"this rank's input has {source.numel()} elements, and its own output {mine.numel()}: they must be equal")
        flats = [torch.empty(writable(block).shape, dtype=block.dtype) for block in blocks]
        flats[self._rank] = dense(source).detach().clone()
        plans = [self._broadcast(flat, root, []) for root, flat in enumerate(flats)]
        return self._do_all(opts, plans, blocks, lambda: put(blocks, flats))

    def _all_gather_list(self: AllfoldGroup, blocks: Tensors, source: torch.Tensor) -> Plan:
        flat = dense(source)
        parts = torch.empty((self._size, flat.numel()), dtype=flat.dtype)
        [writable(block) for block in blocks]
        return Plan("all_gather", place(flat), place(parts), blocks, finish=lambda: put(blocks, parts))

    def allgather_coalesced(self: AllfoldGroup, outputs: list[Tensors], sources: Tensors, opts: Any = None) -> Work:
        # One list of outputs for each rank.
        plans = [self._all_gather_list([output[at] for output in outputs], source) for at, source in enumerate(sources)]
        return self._do_all(options(opts), plans, [tensor for output in outputs for tensor in output])

    def gather(
        self: AllfoldGroup,
        outputs: Tensors | list[Tensors],
        sources: torch.Tensor | Tensors,
        opts: Any = None,
        timeout: Any = None,
        root: Any = None,
    ) -> Work:
        opts, flat = options(opts, root, timeout), dense(tensors(sources)[0])
        root = self._root(opts.rootRank)
        blocks = _lists(outputs)[0] if root == self._rank else []
        if root == self._rank and (len(blocks) != self._size or any(writable(block).numel() != flat.numel() for block in blocks)):
            raise ValueError(f"gather takes {self._size} outputs of {flat.numel()} elements on its root")
        parts = torch.empty((len(blocks), flat.numel()), dtype=flat.dtype)
        return self._do(opts, Plan("gather", place(flat), place(parts), blocks, root=root, finish=lambda: put(blocks, parts)))

    def gather_single(self: AllfoldGroup, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        """:meth:`gather` into one tensor; only the root's ``output`` is used."""
        opts = options(opts)
        mine = self._root(opts.rootRank) == self._rank
        if mine and output.numel() != source.numel() * self._size:
            raise ValueError(f"gather takes an output of {self._size} x {source.numel()} elements on its root, not {output.numel()}")
        return self.gather([list(output.view(self._size, -1))] if mine else [], [source], opts)

    def scatter(
        self: AllfoldGroup,
        outputs: torch.Tensor | Tensors,
        sources: Tensors | list[Tensors],
        opts: Any = None,
        timeout: Any = None,
        root: Any = None,
    ) -> Work:
        opts, output = options(opts, root, timeout), tensors(outputs)[0]
        root = self._root(opts.rootRank)
        blocks = _lists(sources)[0] if root == self._rank else []
        if root == self._rank and (len(blocks) != self._size or any(block.numel() != output.numel() for block in blocks)):
            raise ValueError(f"scatter takes {self._size} inputs of {output.numel()} elements on its root")
        target = room(output)
        parts = torch.stack([dense(block).reshape(-1) for block in blocks]) if blocks else target.new_empty(0)
        plan = Plan("scatter", place(parts), place(target), tensors(outputs), root=root, finish=back(output, target))
        return self._do(opts, plan)

    def all_to_all_single(
        self: AllfoldGroup,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: list[int] | None = None,
        input_splits: list[int] | None = None,
        opts: Any = None,
        timeout: Any = None,
    ) -> Work:
        opts = options(opts, timeout)
        if output.dtype != source.dtype:
            raise ValueError(f"all_to_all takes an input and an output of one type, not {source.dtype} and {output.dtype}")
        if not output.dim() or not source.dim():
            raise ValueError("all_to_all takes an input and an output of at least one dimension, and one of these has none")
        if output_splits or input_splits:
            sent, received = self._split(source, input_splits, "input"), self._split(output, output_splits, "output")
            return self._exchange(received, sent, [output], opts)
        if output.numel() != source.numel() or output.shape[:1] != source.shape[:1] or source.shape[0] % self._size:
            raise ValueError(
                f"all_to_all without split sizes takes an input and an output of one length, which {self._size} ranks divide"
            )
        target = room(output)
        return self._do(opts, Plan("all_to_all", place(dense(source)), place(target), [output], finish=back(output, target)))

    alltoall_base = all_to_all_single

    def _split(self: AllfoldGroup, tensor: torch.Tensor, sizes: list[int] | None, what: str) -> Tensors:
        rows = tensor.shape[0]
        sizes = sizes or [rows // self._size] * self._size
        whole = all(isinstance(size, int) and size >= 0 for size in sizes)
        if len(sizes) != self._size or not whole or sum(sizes) != rows:
            raise ValueError(f"the {what} split sizes {sizes} are not {self._size} whole numbers from 0 whose sum is {rows}")
        return list(tensor.split(sizes))

    def alltoall(self: AllfoldGroup, outputs: Tensors, sources: Tensors, opts: Any = None, timeout: Any = None) -> Work:
        return self._exchange(outputs, sources, outputs, options(opts, timeout))
