//! The layers that are computed together with others, as [`super::fusion`] finds them.

use super::backward::{gone, halves, stats};
use super::fusion::{Fusion, fusions, logits_apart};
use super::passes::{PassContext, Passes};
use crate::Result;
use allfold_cuda::{Memory, Slice, launch};
use allfold_kernels::DType;
use allfold_networks::layers::LayerOperation;
use std::sync::Arc;

impl Passes {
    /// Fuses layers in training, and aligns the rows of logits if `aligns` is true. The rank must hold all parameters during a whole pass,
    /// and must run all layers.
    pub fn fuse(&mut self, aligns: bool) {
        self.fusions = fusions(&self.network, &self.operations, &self.precision);
        self.apart = if aligns { logits_apart(&self.operations, &self.precision) } else { 0 };
    }

    /// The launch of batch norm `norm`.
    fn norm(&self, norm: usize, n: usize) -> Result<launch::BatchNormLaunch> {
        match self.operations[norm] {
            LayerOperation::BatchNorm { channels, plane, .. } => {
                Ok(self.batch_norm(norm, channels, plane, n))
            }
            _ => Err(gone(&self.network.names()[norm])),
        }
    }

    /// Weight and bias of batch or layer norm `norm`.
    pub(crate) fn norm_params<'w>(
        &self,
        norm: usize,
        with: &PassContext<'w, '_>,
    ) -> Result<(Slice<'w>, Slice<'w>)> {
        Ok((self.wide_param(norm, 0, with.weights)?, self.wide_param(norm, 1, with.weights)?))
    }

    /// Computes batch norm `l` from its input to `y`, or only its statistics if `y` is empty, by the totals of all ranks if `totals` has them. Returns the tensors that it
    /// saves for the backward pass.
    pub(crate) fn forward_batch_norm(
        &self,
        l: usize,
        with: &PassContext<'_, '_>,
        train: bool,
        shape: &launch::BatchNormLaunch,
        totals: Option<&Memory>,
        y: &Memory,
    ) -> Result<Vec<Memory>> {
        let (queue, weights, channels) = (with.queue, with.weights, shape.channels);
        let x = self.x(l, with.n)?;
        let both = queue.memory(8 * channels)?;
        let (means, rs) = (both.all().part(0, 4 * channels)?, both.all().part(4 * channels, 4 * channels)?);
        let stats = launch::Saved { means, rs };
        let at = self.network.buffers_of(l);
        let running = weights.buffers().part(4 * at.start, 4 * at.len())?;
        match totals {
            Some(totals) => shape.by_totals(queue, totals.all(), running, stats)?,
            None if train => shape.statistics(queue, x, running, stats)?,
            None => shape.running(queue, running, stats)?,
        };
        if !y.is_empty() {
            shape.apply(queue, x, self.norm_params(l, with)?, stats, y.all())?;
        }
        Ok(vec![both])
    }

    /// Computes the output of rectifier `l`, which batch norm `norm` left to it.
    pub(crate) fn forward_fused(
        &mut self,
        l: usize,
        (norm, other): (usize, Option<usize>),
        with: &PassContext<'_, '_>,
    ) -> Result<()> {
        let (n, shape) = (with.n, self.norm(norm, with.n)?);
        let y = self.fresh(l, n * self.network.layers()[l].outputs(), with.queue)?;
        let stats = stats(&self.slot.saved[norm], shape.channels)?;
        let other = other.map(|act| self.act(act, n)).transpose()?;
        let params = self.norm_params(norm, with)?;
        shape.apply_relu(with.queue, (self.x(norm, n)?, other), params, stats, y.all())?;
        self.slot.acts[l + 1] = Some(Arc::new(y));
        Ok(())
    }

    /// Passes the gradient of rectifier `l`, which batch norm `norm` left to it, on to the rectifier's input.
    pub(crate) fn fused_relu_back(
        &mut self,
        l: usize,
        (norm, other): (usize, Option<usize>),
        with: &PassContext<'_, '_>,
    ) -> Result<()> {
        let dx = match other {
            Some(_) => Arc::new(self.sum_relu_back(l, norm, with)?),
            None => self.first_grad(l)?,
        };
        self.accumulate_grad(self.network.from(l)[0], (self.precision.act(l + 1), dx), with)
    }

    /// Computes layer norm `l` of the residual sum before it, and the sum.
    pub(crate) fn forward_sum_norm(&mut self, l: usize, with: &PassContext<'_, '_>) -> Result<()> {
        let (n, queue, LayerOperation::LayerNorm { rows, width, eps }) =
            (with.n, with.queue, &self.operations[l])
        else {
            return Err(gone(&self.network.names()[l]));
        };
        let s = self.layer_norm_launch(l, n * rows, *width, *eps as f32);
        let [first, second] = [0, 1].map(|nth| self.act(self.network.from(l - 1)[nth], n));
        let (sum, y) =
            (self.fresh(l, s.rows * width, queue)?, queue.memory(s.rows * width * s.output.size())?);
        let (means, rs) = (queue.memory(4 * s.rows)?, queue.memory(4 * s.rows)?);
        let (x, saved) = ((first?, Some((second?, sum.all()))), (means.all(), rs.all()));
        launch::layer_norm(queue, &s, x, self.norm_params(l, with)?, saved, y.all())?;
        self.slot.saved[l] = vec![means, rs];
        (self.slot.acts[l], self.slot.acts[l + 1]) = (Some(Arc::new(sum)), Some(Arc::new(y)));
        Ok(())
    }

    /// Computes the residual sum `l` of `x` and its second input. A sum in f32 reads a narrower summand as it is.
    pub(crate) fn residual_sum(
        &self,
        l: usize,
        x: Slice<'_>,
        y: &Memory,
        with: &PassContext<'_, '_>,
    ) -> Result<()> {
        let (other, dtype) = (self.network.from(l)[1], self.precision.layers[l]);
        let (is, wanted) = (self.precision.act(other), self.precision.reads(l));
        let second = self.act(other, with.n)?;
        if dtype == DType::F32 && is.channels_last == wanted.channels_last {
            launch::add_wide(with.queue, is.dtype, (x, second), y.all())?;
        } else {
            let brought = is.to(wanted, second, with.queue)?;
            launch::add(with.queue, dtype, (x, brought.as_ref().map_or(second, Memory::all)), y.all())?;
        }
        Ok(())
    }

    /// The gradient before rectifier `l` of a sum with batch norm `norm`; keeps the norm's sums for its own phase.
    fn sum_relu_back(&mut self, l: usize, norm: usize, with: &PassContext<'_, '_>) -> Result<Memory> {
        let (n, shape, dy) = (with.n, self.norm(norm, with.n)?, self.first_grad(l)?);
        let more = self.slot.second_grads[l + 1].take();
        let dz = self.fresh(l, n * self.network.layers()[l].outputs(), with.queue)?;
        let stats = stats(&self.slot.saved[norm], shape.channels)?;
        let (x, more) = ((self.x(norm, n)?, self.act(l + 1, n)?), more.as_deref().map(Memory::all));
        let parts = shape.backward_add_relu(with.queue, x, (dy.all(), more), stats, dz.all())?;
        self.slot.sums[norm] = Some(parts);
        Ok(dz)
    }

    /// Replaces `both`, the gradients of weight and bias of batch norm `l`, by the sums over the gradient `dy` of its output.
    pub(crate) fn norm_sums(
        &self,
        l: usize,
        dy: &Memory,
        both: &Memory,
        with: &PassContext<'_, '_>,
    ) -> Result<()> {
        let shape = self.norm(l, with.n)?;
        let (stats, into) = (stats(&self.slot.saved[l], shape.channels)?, halves(both, shape.channels)?);
        if let Some(parts) = &self.slot.sums[l] {
            return Ok(shape.params_of_sums(with.queue, parts.all(), stats, into)?);
        }
        let masks = self.fusions[l] == Fusion::Norm { masks: true };
        let relu = masks.then(|| self.norm_params(l, with)).transpose()?;
        shape.backward_params(with.queue, (self.x(l, with.n)?, dy.all()), stats, into, relu)?;
        Ok(())
    }
}
