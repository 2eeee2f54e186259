//! The backward pass on a device: parameter gradients into their slots, activation gradients down to the input.

use super::fusion::Fusion;
use super::layout::TensorFormat;
use super::passes::{PassContext, Passes, conv, plane, pool};
use crate::error::network;
use crate::{Error, Result};
use allfold_collectives::ReduceOp;
use allfold_cuda::launch::{self, InputGradient};
use allfold_cuda::vendor::{self, ConvProduct};
use allfold_cuda::{Memory, Slice};
use allfold_gpu::device::ReducePath;
use allfold_kernels::DType;
use allfold_networks::layers::LayerOperation;
use std::sync::Arc;

impl Passes {
    /// The gradient of the output of layer `l`, without a second gradient that is not yet added to it.
    pub(crate) fn first_grad(&self, l: usize) -> Result<Arc<Memory>> {
        let missing =
            || network(format!("no gradient reached the output of layer `{}`", self.network.names()[l]));
        self.slot.act_grads[l + 1].clone().ok_or_else(missing)
    }

    /// Lets `body` write the gradient of weight `nth` of layer `l`, in the layer's type, and stores it in its slot, or adds it to the
    /// gradient of earlier micro-batches and of other layers that share the weight.
    pub(crate) fn weight(
        &self,
        l: usize,
        nth: usize,
        with: &PassContext<'_, '_>,
        body: impl FnOnce(Slice<'_>) -> allfold_cuda::Result<()>,
    ) -> Result<()> {
        let (dtype, queue) = (self.precision.layers[l], with.queue);
        self.gradient(l, nth, with, |slot| {
            if dtype == DType::F32 {
                return body(slot);
            }
            let own = queue.memory(slot.len() / 4 * dtype.size())?;
            body(own.all())?;
            launch::cast(queue, (dtype, own.all()), (DType::F32, slot), 1.0)
        })
    }

    /// Like [`Passes::weight`], for gradients that kernels compute in f32. Gradients of layers under autocast are rounded
    /// afterwards.
    pub(crate) fn wide(
        &self,
        l: usize,
        nth: usize,
        with: &PassContext<'_, '_>,
        body: impl FnOnce(Slice<'_>) -> allfold_cuda::Result<()>,
    ) -> Result<()> {
        let (dtype, queue) = (self.precision.layers[l], with.queue);
        let narrows = self.precision.narrows(&self.network, l);
        self.gradient(l, nth, with, |slot| {
            if !narrows {
                return body(slot);
            }
            let (own, narrow) = (queue.memory(slot.len())?, queue.memory(slot.len() / 4 * dtype.size())?);
            body(own.all())?;
            launch::cast(queue, (DType::F32, own.all()), (dtype, narrow.all()), 1.0)?;
            launch::cast(queue, (dtype, narrow.all()), (DType::F32, slot), 1.0)
        })
    }

    /// Stores the gradient of the table of layer `l`; in f32 it is added to an earlier one in place, as that of a head that shares the
    /// table.
    fn table_gradient(
        &self,
        l: usize,
        s: &launch::EmbeddingLaunch,
        with: &PassContext<'_, '_>,
        (x, dy): (Slice<'_>, Slice<'_>),
    ) -> Result<()> {
        let back = |dw: Slice<'_>, adds| launch::embedding_back(with.queue, s, x, dy, (dw, None), adds);
        if s.dtype != DType::F32 {
            return self.weight(l, 0, with, |dw| back(dw, false));
        }
        let param = self.network.params_of(l).start;
        let adds = with.weights.begin_grad(param);
        with.weights.grad(param)?.map_or(Ok(()), |slot| Ok(back(slot, adds)?))
    }

    /// Lets `body` write a gradient in f32 to its slot, or, if the slot has a gradient of this step, to memory that is added to it.
    pub(crate) fn gradient(
        &self,
        l: usize,
        nth: usize,
        with: &PassContext<'_, '_>,
        body: impl FnOnce(Slice<'_>) -> allfold_cuda::Result<()>,
    ) -> Result<()> {
        let param = self.network.params_of(l).start + nth;
        let begun = with.weights.begin_grad(param);
        let Some(slot) = with.weights.grad(param)? else { return Ok(()) };
        if !begun {
            return Ok(body(slot)?);
        }
        let own = with.queue.memory(slot.len())?;
        body(own.all())?;
        launch::add(with.queue, DType::F32, (slot, own.all()), slot)?;
        Ok(())
    }

    pub(crate) fn layer_params(&mut self, l: usize, with: &mut PassContext<'_, '_>) -> Result<()> {
        let (n, queue, dtype) = (with.n, with.queue, self.precision.layers[l]);
        self.gather_gradient(l, with)?;
        // The gathered input is freed with the layer's other tensors.
        drop(self.gather_input(l, with)?);
        let dy = self.first_grad(l)?;
        let x = self.x(l, n)?;
        let mut keep = None;
        match &self.operations[l] {
            LayerOperation::Linear { bias, .. }
            | LayerOperation::ColumnParallel { bias, .. }
            | LayerOperation::RowParallel { bias, .. } => {
                self.linear_params(l, with, (x, dy.all()), *bias)?
            }
            LayerOperation::Conv { shape, bias } => {
                let s = conv(shape, self.precision.reads(l), n);
                self.weight(l, 0, with, |dw| {
                    vendor::conv(queue, ConvProduct::Weight, &s, (x, dy.all()), dw)
                })?;
                if *bias {
                    let plane = plane(&s)?;
                    self.wide(l, 1, with, |db| launch::bias_back(queue, dtype, dy.all(), db, plane))?;
                }
            }
            LayerOperation::BatchNorm { channels, .. } => {
                let both = queue.memory(8 * channels)?;
                let (dw, db) = halves(&both, *channels)?;
                self.norm_sums(l, &dy, &both, with)?;
                self.wide(l, 0, with, |slot| queue.copy(slot, dw))?;
                self.wide(l, 1, with, |slot| queue.copy(slot, db))?;
                keep = Some(both);
            }
            // A layer norm computes its weight gradients together with its input gradient, which may exist already.
            LayerOperation::LayerNorm { .. } | LayerOperation::SequenceLayerNorm { .. } => {
                self.layer_norm(l, with, &dy, true)?
            }
            LayerOperation::SequencePositions { .. } => self.sequence_positions_params(l, with, &dy)?,
            LayerOperation::Embedding { .. } | LayerOperation::VocabParallel { .. } => {
                if let Some(s) = self.table(l) {
                    self.table_gradient(l, &s, with, (x, dy.all()))?;
                }
            }
            LayerOperation::Positions { .. } => {
                self.wide(l, 0, with, |dw| launch::bias_back(queue, dtype, dy.all(), dw, 1))?;
            }
            LayerOperation::PositionsPart { .. } => self.positions_params(l, with, &dy)?,
            LayerOperation::ExpertRouter { .. } => self.router_params(l, with, &dy)?,
            LayerOperation::ExpertLinear { .. } => self.expert_linear_params(l, with, &dy)?,
            _ => {}
        }
        self.slot.saved[l].extend(keep);
        Ok(())
    }

    /// The launch of layer norm `l` over so many rows.
    pub(crate) fn layer_norm_launch(
        &self,
        l: usize,
        rows: usize,
        columns: usize,
        eps: f32,
    ) -> launch::LayerNormLaunch {
        let (dtype, output) = (self.precision.layers[l], self.precision.acts[l + 1]);
        launch::LayerNormLaunch { dtype, output, rows, columns, eps }
    }

    /// Computes the three gradients of a layer norm: stores those of its parameters if `params` is true, and keeps the input gradient
    /// among the saved tensors until its phase.
    fn layer_norm(
        &mut self,
        l: usize,
        with: &mut PassContext<'_, '_>,
        dy: &Memory,
        params: bool,
    ) -> Result<()> {
        let (LayerOperation::LayerNorm { rows, width, eps }
        | LayerOperation::SequenceLayerNorm { rows, width, eps }) = self.operations[l]
        else {
            return Ok(());
        };
        let queue = with.queue;
        let s = self.layer_norm_launch(l, with.n * rows, width, eps as f32);
        let from = self.network.from(l)[0];
        let is_same = self.precision.act(from) == self.precision.reads(l);
        let more = if is_same { self.slot.act_grads[from].clone() } else { None };
        let (dx, both) = (self.fresh(l, s.rows * width, queue)?, queue.memory(8 * width)?);
        let [means, rs] = &self.slot.saved[l][..] else { return Err(gone(&self.network.names()[l])) };
        let w = self.wide_param(l, 0, with.weights)?;
        let x = self.x(l, with.n)?;
        let thin = match self.fusions[l] {
            Fusion::AfterSum => Some(queue.memory(s.rows * width * s.output.size())?),
            _ => None,
        };
        let [more, thin_slice] = [more.as_deref(), thin.as_ref()].map(|memory| memory.map(Memory::all));
        let into = InputGradient { more, dx: dx.all(), thin: thin_slice };
        launch::layer_norm_back(queue, &s, (x, dy.all()), w, (means.all(), rs.all()), into, both.all())?;
        let (dw, db) = halves(&both, width)?;
        if params {
            if matches!(self.operations[l], LayerOperation::SequenceLayerNorm { .. }) {
                with.sum_parts(DType::F32, ReduceOp::Sum, both.all())?;
            }
            self.wide(l, 0, with, |slot| queue.copy(slot, dw))?;
            self.wide(l, 1, with, |slot| queue.copy(slot, db))?;
        }
        self.slot.thin_grads[from] = thin.map(Arc::new);
        self.slot.saved[l].push(dx);
        Ok(())
    }

    /// The gradient of a layer norm's input, in which what had arrived of it by other paths is added already, so that it is dropped here.
    /// A pipeline may run the phase of the parameters later, which computes all three gradients again.
    fn layer_norm_input(
        &mut self,
        l: usize,
        with: &mut PassContext<'_, '_>,
        dy: &Memory,
    ) -> Result<Option<Memory>> {
        if self.slot.saved[l].len() == 2 {
            self.layer_norm(l, with, dy, false)?;
        }
        let from = self.network.from(l)[0];
        if self.precision.act(from) == self.precision.reads(l) {
            self.slot.act_grads[from] = None;
        }
        Ok(self.slot.saved[l].pop())
    }

    /// Sums the gradients of a synchronised batch norm's parameters over all ranks, and keeps the sums for the input gradient.
    pub(crate) fn sums_back(&mut self, l: usize, with: &mut PassContext<'_, '_>) -> Result<()> {
        let [.., totals, own] = &self.slot.saved[l][..] else { return Err(gone(&self.network.names()[l])) };
        debug_assert!(totals.len() >= 8);
        let all = with.queue.memory(own.len())?;
        if with.axes.data.path() == ReducePath::Host {
            // As on the CPU.
            let wide = with.queue.memory(2 * own.len())?;
            launch::cast(with.queue, (DType::F32, own.all()), (DType::F64, wide.all()), 1.0)?;
            with.axes.data.all_reduce(with.queue, DType::F64, ReduceOp::Sum, wide.all())?;
            with.axes.data.join(with.queue)?;
            launch::cast(with.queue, (DType::F64, wide.all()), (DType::F32, all.all()), 1.0)?;
        } else {
            with.queue.copy(all.all(), own.all())?;
            with.axes.data.all_reduce(with.queue, DType::F32, ReduceOp::Sum, all.all())?;
            with.axes.data.join(with.queue)?;
        }
        self.slot.saved[l].pop();
        self.slot.saved[l].push(all);
        Ok(())
    }

    pub(crate) fn layer_input(&mut self, l: usize, with: &mut PassContext<'_, '_>) -> Result<()> {
        let (n, queue, dtype) = (with.n, with.queue, self.precision.layers[l]);
        self.gather_gradient(l, with)?;
        let dy = self.first_grad(l)?;
        if self.network.layers()[l].traits().identity_backward {
            return self.pass_on(l, dy, with);
        }
        let dx = self.fresh(l, n * self.network.layers()[l].inputs(), queue)?;
        let x = self.x(l, n)?;
        let weights = with.weights;
        let mut ready = None;
        match &self.operations[l] {
            LayerOperation::Linear { .. }
            | LayerOperation::ColumnParallel { .. }
            | LayerOperation::RowParallel { .. } => self.linear_input(l, with, (&dy, &dx))?,
            LayerOperation::Conv { shape, .. } => {
                let s = conv(shape, self.precision.reads(l), n);
                let w = self.param(l, 0, weights)?;
                vendor::conv(queue, ConvProduct::Input, &s, (dy.all(), w), dx.all())?;
            }
            LayerOperation::BatchNorm { channels, plane, synchronised } => {
                let shape = self.batch_norm(l, *channels, *plane, n);
                self.batch_norm_input(l, with, &shape, *synchronised, (&dy, &dx))?;
            }
            LayerOperation::LayerNorm { .. } | LayerOperation::SequenceLayerNorm { .. } => {
                ready = self.layer_norm_input(l, with, &dy)?;
            }
            // The input of a ReLU is above 0 exactly where its output is.
            LayerOperation::Relu => {
                let y = self.act(l + 1, n)?;
                launch::activate_back(queue, launch::Function::Relu, dtype, (y, dy.all()), dx.all())?;
            }
            LayerOperation::Gelu => {
                launch::activate_back(queue, launch::Function::Gelu, dtype, (x, dy.all()), dx.all())?;
            }
            LayerOperation::MaxPool(shape) => {
                let winners = self.slot.saved[l].first().ok_or_else(|| gone(&self.network.names()[l]))?;
                let s = pool(shape, self.precision.reads(l), n);
                launch::max_pool_back(queue, dtype, &s, winners.all(), dy.all(), dx.all())?;
            }
            LayerOperation::MeanPool(shape) => {
                let s = pool(shape, self.precision.reads(l), n);
                launch::mean_pool_back(queue, dtype, &s, dy.all(), dx.all())?;
            }
            LayerOperation::GlobalMeanPool { channels, .. } => {
                let last = self.precision.reads(l).channels_last.map(|_| *channels);
                launch::plane_mean_back(queue, dtype, dy.all(), dx.all(), last)?;
            }
            LayerOperation::Attention { .. } => self.attention_input(l, with, (&dy, &dx))?,
            LayerOperation::Dropout { .. } => self.drop_values(l, queue, (dy.all(), dx.all()))?,
            LayerOperation::RingAttention { .. } => self.ring_input(l, with, (&dy, &dx))?,
            LayerOperation::ExpertRouter { .. } => self.router_input(l, with, (&dy, &dx))?,
            LayerOperation::ExpertLinear { .. } => self.expert_linear_input(l, with, (&dy, &dx))?,
            LayerOperation::ExpertGelu { .. } => self.expert_gelu_input(l, with, (&dy, &dx))?,
            LayerOperation::ExpertCombine { .. } => self.combine_input(l, with, (&dy, &dx))?,
            // Tokens have no gradient. The other layers do not reach this arm: four pass on a gradient, and `Own` is refused.
            LayerOperation::Embedding { .. }
            | LayerOperation::VocabParallel { .. }
            | LayerOperation::Positions { .. }
            | LayerOperation::PositionsPart { .. }
            | LayerOperation::SequencePositions { .. }
            | LayerOperation::Add
            | LayerOperation::RmsNorm { .. }
            | LayerOperation::Rope(_)
            | LayerOperation::Swiglu { .. }
            | LayerOperation::Own => queue.fill(dx.all(), 0)?,
        }
        // A product may also have computed the gradient of the GELU before it.
        let into = if self.fusions[l] == Fusion::AfterGelu { l - 1 } else { self.network.from(l)[0] };
        self.accumulate_grad(into, (self.precision.reads(l), Arc::new(ready.unwrap_or(dx))), with)
    }

    /// Gives the gradient `dy` of the output of layer `l` to all its inputs.
    fn pass_on(&mut self, l: usize, dy: Arc<Memory>, with: &PassContext<'_, '_>) -> Result<()> {
        let (is, thin) = (self.precision.act(l + 1), self.slot.thin_grads[l + 1].take());
        self.network.from(l).to_vec().into_iter().try_for_each(|act| {
            let wanted = self.precision.act(act);
            let given = thin.clone().filter(|_| wanted.dtype != is.dtype).map(|thin| (wanted, thin));
            self.accumulate_grad(act, given.unwrap_or((is, dy.clone())), with)
        })
    }

    fn attention_input(
        &self,
        l: usize,
        with: &PassContext<'_, '_>,
        (dy, dx): (&Memory, &Memory),
    ) -> Result<()> {
        let (s, x, y) = (self.heads(l, with.n, true)?, self.x(l, with.n)?, self.act(l + 1, with.n)?);
        let lse = self.slot.saved[l].first().ok_or_else(|| gone(&self.network.names()[l]))?;
        launch::attention_back(with.queue, &s, x, (y, dy.all()), lse.all(), dx.all())?;
        Ok(())
    }

    /// Computes the gradient of a batch norm's input, `dx`, from the gradients of its output, `dy`, and of its parameters.
    fn batch_norm_input(
        &self,
        l: usize,
        with: &PassContext<'_, '_>,
        shape: &launch::BatchNormLaunch,
        synchronised: bool,
        (dy, dx): (&Memory, &Memory),
    ) -> Result<()> {
        let saved = &self.slot.saved[l];
        let own = saved.last().filter(|_| saved.len() > 1 + usize::from(synchronised));
        let both = own.ok_or_else(|| gone(&self.network.names()[l]))?;
        let count = match synchronised {
            true => Some(saved[1].all().part(0, 8)?),
            false => None,
        };
        let ((w, b), m) = (self.norm_params(l, with)?, (with.n * shape.plane) as f32);
        let bias = (self.fusions[l] == Fusion::Norm { masks: true }).then_some(b);
        let (at, stats) = ((self.x(l, with.n)?, dy.all()), stats(saved, shape.channels)?);
        let sums = halves(both, shape.channels)?;
        shape.backward_input(with.queue, at, (w, bias), stats, sums, (m, count), dx.all())?;
        Ok(())
    }

    /// Stores the gradient `dx` of activation `act`, in the activation's format, or adds `dx` to the gradient that is stored
    /// already.
    pub(crate) fn accumulate_grad(
        &mut self,
        act: usize,
        (is, dx): (TensorFormat, Arc<Memory>),
        with: &PassContext<'_, '_>,
    ) -> Result<()> {
        let (queue, wanted) = (with.queue, self.precision.acts[act]);
        let brought = is.to(self.precision.act(act), dx.all(), queue)?;
        let mut dx = brought.map_or(dx, Arc::new);
        let by_reader = act.checked_sub(1).map(|l| self.fusions[l]);
        if matches!(by_reader, Some(Fusion::Relu { other: Some(_), .. }))
            && self.slot.act_grads[act].is_some()
            && self.slot.second_grads[act].is_none()
        {
            self.slot.second_grads[act] = Some(dx);
            return Ok(());
        }
        if let Some(held) = self.slot.act_grads[act].take() {
            let sum = queue.memory(dx.len())?;
            launch::add(queue, wanted, (dx.all(), held.all()), sum.all())?;
            dx = Arc::new(sum);
        }
        self.slot.act_grads[act] = Some(dx);
        Ok(())
    }
}

pub(crate) fn gone(name: &str) -> Error {
    network(format!("layer `{name}` has no saved values for its backward pass"))
}

/// Splits `both` into two vectors of `n` f32 that are stored one after the other.
pub(crate) fn halves(both: &Memory, n: usize) -> Result<(Slice<'_>, Slice<'_>)> {
    Ok((both.all().part(0, 4 * n)?, both.all().part(4 * n, 4 * n)?))
}

pub(crate) fn stats(saved: &[Memory], channels: usize) -> Result<launch::Saved<'_>> {
    let both = saved.first().ok_or_else(|| gone("batch norm"))?;
    let (means, rs) = halves(both, channels)?;
    Ok(launch::Saved { means, rs })
}
