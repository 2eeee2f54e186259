"""The reductions of a group: all_reduce, reduce, reduce_scatter, in all their forms.

Where Allfold cannot reduce a type or by an operator, the tensors are gathered, and PyTorch reduces them in order of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import Work

from .elements import NOTHING, NUMERIC, back, dense, fits, fold, operator, place, plain, put, reducible, room, writable
from .options import Tensors, options, tensors
from .work import Done, Plan

if TYPE_CHECKING:
    from .group import AllfoldGroup


class Reductions:
    """The reductions of a group: a mixin of ``AllfoldGroup``, which sets the attributes used here."""

    def allreduce(self: AllfoldGroup, sources: torch.Tensor | Tensors, opts: Any = None, timeout: Any = None, op: Any = None) -> Work:
        sources, opts = tensors(sources), options(opts, op, timeout)
        if len(sources) > 1:
            return self.allreduce_coalesced(sources, opts)
        if sources[0].layout is not torch.strided:
            return self._sparse(sources[0], opts)
        op = operator(opts.reduceOp)
        done = op in NUMERIC and self._now(opts, "all_reduce", NOTHING, plain(sources[0]), op)
        return done or self._do(opts, self._all_reduce(sources[0], op, sources))

    def _all_reduce(self: AllfoldGroup, tensor: torch.Tensor, op: str, result: Tensors) -> Plan:
        flat = room(tensor)
        found = reducible(flat, op)
        if found is not None:
            return Plan("all_reduce", NOTHING, found[0], result, found[1], finish=back(tensor, flat))
        parts = torch.empty((self._size, *flat.shape), dtype=flat.dtype)
        return Plan("all_gather", place(flat), place(parts), result, finish=lambda: put([tensor], [fold(parts, op)]))

    def allreduce_coalesced(self: AllfoldGroup, sources: Tensors, opts: Any = None) -> Work:
        opts = options(opts)
        op = operator(opts.reduceOp)
        if not sources:
            return Done([])
        if len({tensor.dtype for tensor in sources}) > 1 or reducible(dense(sources[0]), op) is None:
            return self._do_all(opts, [self._all_reduce(tensor, op, [tensor]) for tensor in sources], sources)
        flat = torch.cat([room(tensor).detach().reshape(-1) for tensor in sources])
        memory, op = reducible(flat, op)
        parts = flat.split([tensor.numel() for tensor in sources])
        return self._do(opts, Plan("all_reduce", NOTHING, memory, sources, op, finish=lambda: put(sources, parts)))

    def _sparse(self: AllfoldGroup, tensor: torch.Tensor, opts: Any) -> Work:
        """The sum of sparse tensors: all ranks' indices and values, added up in order of ranks."""
        op = operator(opts.reduceOp)
        if op != "sum" or tensor.layout is not torch.sparse_coo:
            raise ValueError(f"the backend allfold sums sparse tensors of layout sparse_coo, and this is {op} of {tensor.layout}")
        mine = tensor.coalesce()
        counts = torch.zeros(self._size, dtype=torch.int64)
        here = torch.tensor([mine._nnz()])
        self._run(opts, Plan("all_gather", place(here), place(counts), []))
        indices, values = mine.indices().contiguous(), mine.values().contiguous()
        total = None
        for root, count in enumerate(counts.tolist()):
            there = indices if root == self._rank else indices.new_empty((indices.shape[0], count))
            what = values if root == self._rank else values.new_empty((count, *values.shape[1:]))
            self._run(opts, Plan("broadcast", NOTHING, place(there), [], root=root))
            self._run(opts, Plan("broadcast", NOTHING, place(what), [], root=root))
            part = torch.sparse_coo_tensor(there, what, tensor.shape)
            total = part if total is None else total + part
        total = total.coalesce()
        tensor.copy_(total) if tensor.is_coalesced() else tensor.zero_().add_(total)
        return Done([tensor])

    def reduce(self: AllfoldGroup, sources: torch.Tensor | Tensors, opts: Any, op: Any = None, timeout: Any = None) -> Work:
        sources, opts = tensors(sources), options(opts, op, timeout)
        return self._do(opts, self._reduce(sources[0], operator(opts.reduceOp), self._root(opts.rootRank), sources))

    def _reduce(self: AllfoldGroup, tensor: torch.Tensor, op: str, root: int, result: Tensors) -> Plan:
        mine = root == self._rank
        # On other ranks Allfold uses the memory as scratch; a copy keeps the tensor as it is, as with PyTorch's backends.
        flat = room(tensor) if mine else dense(tensor).clone()
        found = reducible(flat, op)
        if found is not None:
            return Plan("reduce", NOTHING, found[0], result, found[1], root, back(tensor, flat) if mine else None)
        parts = torch.empty((self._size if mine else 0, *flat.shape), dtype=flat.dtype)
        finish = (lambda: put([tensor], [fold(parts, op)])) if mine else None
        return Plan("gather", place(flat), place(parts), result, root=root, finish=finish)

    def reduce_scatter_single(self: AllfoldGroup, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        opts = options(opts)
        op = operator(opts.reduceOp)
        whole, part = plain(source), plain(output)
        done = op in NUMERIC and fits(part, whole, self._size) and self._now(opts, "reduce_scatter", whole, part, op)
        return done or self._do(opts, self._reduce_scatter(output, source, op, [output]))

    _reduce_scatter_base = reduce_scatter_single

    def _reduce_scatter(self: AllfoldGroup, output: torch.Tensor, source: torch.Tensor, op: str, result: Tensors) -> Plan:
        if source.numel() != output.numel() * self._size or source.dtype != output.dtype:
            raise ValueError(
                f"reduce_scatter takes an input of {self._size} times the output: {self._size} x {output.numel()} elements of "
                f"{output.dtype}, not {source.numel()} of {source.dtype}"
            )
        flat, target = dense(source), room(output)
        given, into = reducible(flat, op), reducible(target, op)
        if given is not None and into is not None:
            return Plan("reduce_scatter", given[0], into[0], result, given[1], finish=back(output, target))
        parts = torch.empty((self._size, output.numel()), dtype=flat.dtype)
        return Plan("all_to_all", place(flat), place(parts), result, finish=lambda: put([output], [fold(parts, op)]))

    def reduce_scatter_single_coalesced(self: AllfoldGroup, outputs: Tensors, sources: Tensors, opts: Any = None) -> Work:
        opts = options(opts)
        op, pairs = operator(opts.reduceOp), zip(outputs, sources, strict=True)
        return self._do_all(opts, [self._reduce_scatter(output, source, op, [output]) for output, source in pairs], outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(
        self: AllfoldGroup,
        outputs: torch.Tensor | Tensors,
        sources: Tensors | list[Tensors],
        opts: Any = None,
        timeout: Any = None,
        op: Any = None,
    ) -> Work:
        output, outputs = tensors(outputs)[0], tensors(outputs)
        blocks = sources if isinstance(sources[0], torch.Tensor) else sources[0]
        opts = options(opts, op, timeout)
        op = operator(opts.reduceOp)
        if len(blocks) != self._size:
            raise ValueError(f"reduce_scatter takes one input for each of the {self._size} ranks, not {len(blocks)}")
        if all(block.shape == blocks[0].shape for block in blocks):
            stacked = torch.stack([dense(block) for block in blocks])
            return self._do(opts, self._reduce_scatter(output, stacked, op, outputs))
        mine = blocks[self._rank]
        if mine.numel() != output.numel():
            raise ValueError(f"this rank's input has {mine.numel()} elements, and its output {output.numel()}: they must be equal")
        writable(output)
        copies = [dense(block).detach().clone() for block in blocks]
        plans = [self._reduce(copy, op, root, []) for root, copy in enumerate(copies)]
        return self._do_all(opts, plans, outputs, lambda: put([output], [copies[self._rank]]))
