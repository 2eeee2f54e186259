//! Linear layers and embeddings on a device, whole or in parts that the ranks of the tensor axis share.

use super::fusion::Fusion;
use super::passes::{PassContext, Passes};
use crate::Result;
use allfold_collectives::ReduceOp;
use allfold_cuda::launch::{self, DeviceMatrix, EmbeddingLaunch, ProductOutput};
use allfold_cuda::vendor::{self, Epilogue};
use allfold_cuda::{Memory, Slice};
use allfold_kernels::DType;
use allfold_networks::layers::LayerOperation;
use std::cell::Cell;
use std::sync::Arc;

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

    /// Computes a linear layer from its input to `y`, and with `before` to there, and GELU of it to `y`. A row-parallel layer adds its
    /// bias later, to the sum over ranks.
    pub(crate) fn forward_linear(
        &self,
        l: usize,
        with: &PassContext<'_, '_>,
        y: &Memory,
        before: Option<&Memory>,
    ) -> Result<()> {
        let Some([inputs, outputs, rows]) = self.linear(l) else { return Ok(()) };
        let (x, w) = (self.x(l, with.n)?, self.param(l, 0, with.weights)?);
        let (dtype, apart) = (self.precision.layers[l], self.logits_apart(l));
        let a = DeviceMatrix::new(x, [with.n * rows, inputs], false);
        let b = DeviceMatrix::new(w, [inputs, outputs], true);
        let bias = match self.operations[l] {
            LayerOperation::Linear { bias: true, .. } | LayerOperation::ColumnParallel { bias: true, .. } => {
                // A library reads a bias of the product's own type, if it is aligned as its loads are.
                let own = self.param(l, 1, with.weights)?;
                let is_aligned = own.address().is_multiple_of(16);
                Some(if is_aligned { own } else { self.wide_param(l, 1, with.weights)? })
            }
            _ => None,
        };
        let epilogue = match before {
            Some(before) => Epilogue::Gelu { bias, before: before.all() },
            None => bias.map_or(Epilogue::None, Epilogue::Bias),
        };
        let to = ProductOutput { apart, ..ProductOutput::new(y.all(), dtype) };
        vendor::product(with.queue, dtype, (a, b), to, epilogue)?;
        Ok(())
    }

    /// Computes linear layer `l` and the GELU behind it, and keeps both outputs.
    pub(crate) fn forward_gelu(&mut self, l: usize, with: &PassContext<'_, '_>) -> Result<()> {
        self.take_in(l, with)?;
        let values = with.n * self.network.layers()[l].outputs();
        let (before, y) = (self.fresh(l, values, with.queue)?, self.fresh(l, values, with.queue)?);
        self.forward_linear(l, with, &y, Some(&before))?;
        (self.slot.acts[l + 1], self.slot.acts[l + 2]) = (Some(Arc::new(before)), Some(Arc::new(y)));
        Ok(())
    }

    /// The distance of the rows of the logits, layer `l`'s output, in elements, if it is not the number of classes; otherwise 0.
    pub(crate) fn logits_apart(&self, l: usize) -> usize {
        if l + 1 == self.operations.len() { self.apart } else { 0 }
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

    /// Computes the gradients of a linear layer's weights from its input and the gradient of its output. Those of bf16 are not rounded to
    /// bf16; those of f16 are, because its range is what loss scaling watches.
    pub(crate) fn linear_params(
        &self,
        l: usize,
        with: &PassContext<'_, '_>,
        (x, dy): (Slice<'_>, Slice<'_>),
        bias: bool,
    ) -> Result<()> {
        let Some([inputs, outputs, rows]) = self.linear(l) else { return Ok(()) };
        let (m, queue, dtype) = (with.n * rows, with.queue, self.precision.layers[l]);
        let sums = if bias && dtype == DType::Bf16 { Some(queue.memory(4 * outputs)?) } else { None };
        let summed = Cell::new(false);
        let product = |dw: Slice<'_>, to: DType| {
            let apart = self.logits_apart(l);
            let a = DeviceMatrix { data: dy, rows: outputs, columns: m, transposed: true, apart };
            let b = DeviceMatrix::new(x, [m, inputs], false);
            let epilogue = sums.as_ref().map_or(Epilogue::None, |sums| Epilogue::RowSums(sums.all()));
            summed.set(sums.is_some());
            vendor::product(queue, dtype, (a, b), ProductOutput::new(dw, to), epilogue)
        };
        match dtype {
            DType::Bf16 => self.gradient(l, 0, with, |dw| product(dw, DType::F32))?,
            _ => self.weight(l, 0, with, |dw| product(dw, dtype))?,
        }
        if !bias {
            return Ok(());
        }
        self.wide(l, 1, with, |db| match &sums {
            Some(sums) if summed.get() => queue.copy(db, sums.all()),
            _ => launch::bias_back(queue, dtype, dy, db, 1),
        })
    }

    /// Computes the gradient of a linear layer's input, or of the input of the GELU before it, where both are one
    /// product; for a column-parallel layer, the sum over the ranks.
    pub(crate) fn linear_input(
        &self,
        l: usize,
        with: &mut PassContext<'_, '_>,
        (dy, dx): (&Memory, &Memory),
    ) -> Result<()> {
        let Some([inputs, outputs, rows]) = self.linear(l) else { return Ok(()) };
        let (w, dtype) = (self.param(l, 0, with.weights)?, self.precision.layers[l]);
        let apart = self.logits_apart(l);
        let a =
            DeviceMatrix { data: dy.all(), rows: with.n * rows, columns: outputs, transposed: false, apart };
        let b = DeviceMatrix::new(w, [outputs, inputs], false);
        if let LayerOperation::ColumnParallel { sharers: 2.., .. } = self.operations[l] {
            let all = with.queue.memory(with.n * rows * inputs * dtype.size())?;
            vendor::matmul(with.queue, dtype, (a, b), ProductOutput::new(all.all(), dtype), None)?;
            return with.sum_positions(dtype, all.all(), dx.all());
        }
        let epilogue = match self.fusions[l] {
            Fusion::AfterGelu => Epilogue::GeluBack { before: self.act(l - 1, with.n)? },
            _ => Epilogue::None,
        };
        vendor::product(with.queue, dtype, (a, b), ProductOutput::new(dx.all(), dtype), epilogue)?;
        match self.operations[l] {
            LayerOperation::ColumnParallel { .. } => with.sum_parts(dtype, ReduceOp::Sum, dx.all()),
            _ => Ok(()),
        }
    }
}
