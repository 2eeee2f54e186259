//! Sequence parallelism on a device: outside of tensor-parallel blocks each rank of the tensor axis has some positions of every sample.
//!
//! ```text
//! blocks of the ranks [rank, n, own positions]  <-rows->  samples [n, rank, own positions]
//!    all-gather | reduce-scatter                             what a tensor-parallel layer reads | writes
//! ```

use super::backward::gone;
use super::passes::{PassContext, Passes};
use crate::Result;
use allfold_collectives::ReduceOp;
use allfold_cuda::launch::{self, RowStrides, RowsLaunch};
use allfold_cuda::{Memory, Slice};
use allfold_kernels::DType;
use allfold_networks::layers::LayerOperation;
use std::sync::Arc;

impl Passes {
    /// If ranks share the positions of layer `l`'s input, replaces the input by that of all positions. Returns the replaced input.
    pub(crate) fn gather_input(
        &mut self,
        l: usize,
        with: &mut PassContext<'_, '_>,
    ) -> Result<Option<Option<Memory>>> {
        let LayerOperation::ColumnParallel { sharers: 2.., .. } = self.operations[l] else { return Ok(None) };
        let all = with.gather_positions(self.precision.layers[l], self.x(l, with.n)?)?;
        Ok(Some(self.slot.casts[l].replace(all)))
    }

    /// If ranks share the positions of layer `l`'s output, which is a sum over ranks, replaces the gradient of this rank's positions by
    /// that of all positions; once.
    pub(crate) fn gather_gradient(&mut self, l: usize, with: &mut PassContext<'_, '_>) -> Result<()> {
        let (LayerOperation::RowParallel { sharers: 2.., .. }
        | LayerOperation::VocabParallel { sharers: 2.., .. }) = self.operations[l]
        else {
            return Ok(());
        };
        let own = self.slot.act_grads[l + 1].clone().ok_or_else(|| gone(&self.network.names()[l]))?;
        let dtype = self.precision.layers[l];
        if own.len() < with.n * self.network.layers()[l].gradient_len() * dtype.size() {
            self.slot.act_grads[l + 1] = Some(Arc::new(with.gather_positions(dtype, own.all())?));
        }
        Ok(())
    }

    /// Adds this rank's rows of the table of layer `l` to its input.
    pub(crate) fn add_sequence_positions(
        &self,
        l: usize,
        with: &PassContext<'_, '_>,
        y: &Memory,
    ) -> Result<()> {
        let LayerOperation::SequencePositions { rows, width, .. } = &self.operations[l] else {
            return Ok(());
        };
        with.queue.copy(y.all(), self.x(l, with.n)?)?;
        let table = self.wide_param(l, 0, with.weights)?;
        let own = table.part(4 * rows.start * width, 4 * rows.len() * width)?;
        launch::bias(with.queue, self.precision.layers[l], y.all(), own, 1)?;
        Ok(())
    }

    /// Computes the gradient of a table of positions of which each rank adds its rows.
    pub(crate) fn sequence_positions_params(
        &self,
        l: usize,
        with: &mut PassContext<'_, '_>,
        dy: &Memory,
    ) -> Result<()> {
        let LayerOperation::SequencePositions { positions, rows, width } = &self.operations[l] else {
            return Ok(());
        };
        let (queue, dtype) = (with.queue, self.precision.layers[l]);
        let all = queue.memory(4 * positions * width)?;
        let own = all.all().part(4 * rows.start * width, 4 * rows.len() * width)?;
        launch::bias_back(queue, dtype, dy.all(), own, 1)?;
        if let Some(tensor) = &mut with.axes.tensor {
            tensor.all_gather(queue, DType::F32, all.all())?;
            tensor.join(queue)?;
        }
        self.wide(l, 0, with, |dw| queue.copy(dw, all.all()))
    }
}

impl PassContext<'_, '_> {
    /// All positions of the samples, from `own`, those of this rank.
    fn gather_positions(&mut self, dtype: DType, own: Slice<'_>) -> Result<Memory> {
        let Some(tensor) = &mut self.axes.tensor else {
            let copy = self.queue.memory(own.len())?;
            self.queue.copy(copy.all(), own)?;
            return Ok(copy);
        };
        let (rank, ranks) = (tensor.rank().index(), tensor.ranks() as usize);
        let blocks = self.queue.memory(own.len() * ranks)?;
        self.queue.copy(blocks.all().part(rank * own.len(), own.len())?, own)?;
        tensor.all_gather(self.queue, dtype, blocks.all())?;
        tensor.join(self.queue)?;
        if self.n <= 1 {
            return Ok(blocks);
        }
        let all = self.queue.memory(blocks.len())?;
        let s = by_rank(self.n, ranks, own.len() / dtype.size());
        launch::rows(self.queue, dtype, &s, blocks.all(), all.all())?;
        Ok(all)
    }

    /// Sums `all` positions of the samples over the ranks; this rank gets its own.
    pub(crate) fn sum_positions(&mut self, dtype: DType, all: Slice<'_>, own: Slice<'_>) -> Result<()> {
        let Some(tensor) = &mut self.axes.tensor else { return Ok(self.queue.copy(own, all)?) };
        let (rank, ranks) = (tensor.rank().index(), tensor.ranks() as usize);
        let blocks = self.queue.memory(all.len())?;
        let s = by_rank(self.n, ranks, own.len() / dtype.size());
        let s = RowsLaunch { from: s.into, into: s.from, ..s };
        launch::rows(self.queue, dtype, &s, all, blocks.all())?;
        tensor.reduce_scatter(self.queue, dtype, ReduceOp::Sum, blocks.all())?;
        tensor.join(self.queue)?;
        Ok(self.queue.copy(own, blocks.all().part(rank * own.len(), own.len())?)?)
    }
}

/// From the blocks of ranks, each with `block` elements of `n` samples, to the samples.
fn by_rank(n: usize, ranks: usize, block: usize) -> RowsLaunch {
    let part = block / n.max(1);
    let from = RowStrides { outer: block as u64, row: part as u64 };
    let into = RowStrides { outer: part as u64, row: (ranks * part) as u64 };
    RowsLaunch { outer: ranks, rows: n, columns: part, from, into }
}
