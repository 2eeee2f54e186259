//! Linear layers and embeddings on a device, whole or in parts that the ranks of the tensor axis share.

use super::passes::{PassContext, Passes};
use crate::Result;
use allfold_collectives::ReduceOp;
use allfold_cuda::launch::{self, DeviceMatrix, EmbeddingLaunch};
use allfold_cuda::{Memory, Slice, vendor};
use allfold_networks::layers::LayerOperation;

impl Passes {
    /// The inputs and the outputs of each row of a linear layer or of its part on this rank, and the number of rows of a sample.
    pub(crate) fn linear(&self, l: usize) -> Option<[usize; 3]> {
        match self.operations[l] {
            LayerOperation::Linear { rows, inputs, outputs, .. }
            | LayerOperation::ColumnParallel { rows, inputs, outputs, .. }
            | LayerOperation::RowParallel { rows, inputs, outputs, .. } => Some([inputs, outputs, rows]),
            _ => None,
        }
    }

    /// The launch of an embedding, by a whole table or by this rank's rows of it.
    pub(crate) fn table(&self, l: usize) -> Option<EmbeddingLaunch> {
        let (rows, part, columns, length) = match &self.operations[l] {
            LayerOperation::Embedding { positions, rows, width } => (0..*rows, false, *width, *positions),
            LayerOperation::VocabParallel { positions, rows, width, .. } => {
                (rows.clone(), true, *width, *positions)
            }
            _ => return None,
        };
        let (dtype, part_from) = (self.precision.layers[l], part.then_some(rows.start as u32));
        Some(EmbeddingLaunch { dtype, vocabulary: rows.len(), part_from, columns, length })
    }

    /// Computes an embedding from its tokens to `y`.
    pub(crate) fn forward_table(&self, l: usize, with: &PassContext<'_, '_>, y: &Memory) -> Result<()> {
        let Some(s) = self.table(l) else { return Ok(()) };
        let (x, rows) = (self.x(l, with.n)?, self.wide_param(l, 0, with.weights)?);
        launch::embedding(with.queue, &s, (rows, None), x, y.all())?;
        Ok(())
    }

    /// Computes a linear layer from its input to `y`. A row-parallel layer adds its bias later, to the sum over ranks.
    pub(crate) fn forward_linear(&self, l: usize, with: &PassContext<'_, '_>, y: &Memory) -> Result<()> {
        let Some([inputs, outputs, rows]) = self.linear(l) else { return Ok(()) };
        let (x, w) = (self.x(l, with.n)?, self.param(l, 0, with.weights)?);
        let a = DeviceMatrix { data: x, rows: with.n * rows, columns: inputs, transposed: false };
        let b = DeviceMatrix { data: w, rows: inputs, columns: outputs, transposed: true };
        let bias = match self.operations[l] {
            LayerOperation::Linear { bias: true, .. } | LayerOperation::ColumnParallel { bias: true, .. } => {
                // A library reads a bias of the product's own type, if it is aligned as its loads are.
                let own = self.param(l, 1, with.weights)?;
                let is_aligned = own.address().is_multiple_of(16);
                Some(if is_aligned { own } else { self.wide_param(l, 1, with.weights)? })
            }
            _ => None,
        };
        vendor::matmul(with.queue, self.precision.layers[l], (a, b), y.all(), 0.0, bias)?;
        Ok(())
    }

    /// Sums the output `all` of a layer of which ranks of the tensor axis have parts, and adds the bias that belongs to the sum. `own` is
    /// the memory of this rank's positions, where ranks share them.
    pub(crate) fn sum_output(
        &self,
        l: usize,
        with: &mut PassContext<'_, '_>,
        all: Memory,
        own: Option<Memory>,
    ) -> Result<Memory> {
        let bias = match self.operations[l] {
            LayerOperation::RowParallel { bias, .. } => bias,
            LayerOperation::VocabParallel { .. } => false,
            _ => return Ok(all),
        };
        let dtype = self.precision.layers[l];
        let y = match own {
            Some(own) => {
                with.sum_positions(dtype, all.all(), own.all())?;
                own
            }
            None => {
                with.sum_parts(dtype, ReduceOp::Sum, all.all())?;
                all
            }
        };
        if bias {
            launch::bias(with.queue, dtype, y.all(), self.wide_param(l, 1, with.weights)?, 1)?;
        }
        Ok(y)
    }

    /// Computes the gradients of a linear layer's weights from its input and the gradient of its output.
    pub(crate) fn linear_params(
        &self,
        l: usize,
        with: &PassContext<'_, '_>,
        (x, dy): (Slice<'_>, Slice<'_>),
        bias: bool,
    ) -> Result<()> {
        let Some([inputs, outputs, rows]) = self.linear(l) else { return Ok(()) };
        let (m, queue, dtype) = (with.n * rows, with.queue, self.precision.layers[l]);
        self.weight(l, 0, with, |dw| {
            let a = DeviceMatrix { data: dy, rows: outputs, columns: m, transposed: true };
            let b = DeviceMatrix { data: x, rows: m, columns: inputs, transposed: false };
            vendor::matmul(queue, dtype, (a, b), dw, 0.0, None)
        })?;
        match bias {
            true => self.wide(l, 1, with, |db| launch::bias_back(queue, dtype, dy, db, 1)),
            false => Ok(()),
        }
    }

    /// Computes the gradient of a linear layer's input; for a column-parallel layer, the sum over the ranks.
    pub(crate) fn linear_input(
        &self,
        l: usize,
        with: &mut PassContext<'_, '_>,
        (dy, dx): (&Memory, &Memory),
    ) -> Result<()> {
        let Some([inputs, outputs, rows]) = self.linear(l) else { return Ok(()) };
        let (w, dtype) = (self.param(l, 0, with.weights)?, self.precision.layers[l]);
        let a = DeviceMatrix { data: dy.all(), rows: with.n * rows, columns: outputs, transposed: false };
        let b = DeviceMatrix { data: w, rows: outputs, columns: inputs, transposed: false };
        if let LayerOperation::ColumnParallel { sharers: 2.., .. } = self.operations[l] {
            let all = with.queue.memory(with.n * rows * inputs * dtype.size())?;
            vendor::matmul(with.queue, dtype, (a, b), all.all(), 0.0, None)?;
            return with.sum_positions(dtype, all.all(), dx.all());
        }
        vendor::matmul(with.queue, dtype, (a, b), dx.all(), 0.0, None)?;
        match self.operations[l] {
            LayerOperation::ColumnParallel { .. } => with.sum_parts(dtype, ReduceOp::Sum, dx.all()),
            _ => Ok(()),
        }
    }
}
