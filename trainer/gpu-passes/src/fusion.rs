//! Batch norms that are computed together with the rectifier behind them, and with the residual sum in between.
//!
//! ```text
//! x -norm-relu-> y            one pass over x and y; backward, the rectifier's mask is computed again from x
//! x -norm-+-relu-> y          one pass over x, the other summand and y; backward, the rectifier's gradient, the gradient's own sum
//!         other               over two readers of y, and the sums of the norm's parameters are one pass
//! ```
//!
//! The layers' phases stay. The forward pass computes nothing of the norm but its statistics, and all else at the rectifier; every
//! operation rounds to the tensors' type as it does alone, so results have the same bits.

use super::backward::{gone, halves, stats};
use super::passes::{PassContext, Passes};
use super::precision::TensorFormats;
use crate::Result;
use allfold_cuda::{Memory, Slice, launch};
use allfold_networks::layers::LayerOperation;
use allfold_networks::{Network, NetworkTensors};
use std::sync::Arc;

/// How a layer takes part in a fused computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fusion {
    /// The layer is computed alone.
    #[default]
    Alone,
    /// A batch norm whose output exists only inside the fused computation; its gradient arrives before the rectifier's mask if
    /// `masks` is true.
    Norm { masks: bool },
    /// The sum between a batch norm and a rectifier.
    Sum,
    /// A rectifier that computes what batch norm `norm` left, and adds activation `other`.
    Relu { norm: usize, other: Option<usize> },
}

/// Finds what can be fused: each tensor inside has one reader, all have one format, and no layer runs again in the backward pass.
pub(crate) fn fusions(
    network: &Network<f32>,
    operations: &[LayerOperation],
    formats: &TensorFormats,
) -> Vec<Fusion> {
    let mut fusions = vec![Fusion::Alone; operations.len()];
    let readers =
        |act: usize| (0..operations.len()).flat_map(|l| network.from(l)).filter(|from| **from == act).count();
    // The batch norm whose output is `act`, if the next layer alone reads it.
    let norm_of = |act: usize| {
        let norm = act.checked_sub(1)?;
        let is_norm = matches!(operations[norm], LayerOperation::BatchNorm { .. });
        (is_norm && readers(act) == 1 && formats.reads(norm) == formats.act(act)).then_some(norm)
    };
    for relu in 0..operations.len() {
        if operations[relu] != LayerOperation::Relu {
            continue;
        }
        let from = network.from(relu)[0];
        let (norm, other) = match from.checked_sub(1).map(|before| &operations[before]) {
            Some(LayerOperation::Add) if readers(from) == 1 => {
                let [first, second] = *network.from(from - 1) else { continue };
                (norm_of(first), Some(second))
            }
            _ => (norm_of(from), None),
        };
        let Some(norm) = norm else { continue };
        let inside = [norm, from - 1, relu];
        let formed = [Some(norm + 1), Some(from), Some(relu + 1), other].into_iter().flatten();
        let same = formed.map(|act| formats.act(act)).all(|format| format == formats.reads(norm));
        if !same || inside.iter().any(|l| network.is_recomputed(*l)) {
            continue;
        }
        if other.is_some() {
            fusions[from - 1] = Fusion::Sum;
        }
        fusions[norm] = Fusion::Norm { masks: other.is_none() };
        fusions[relu] = Fusion::Relu { norm, other };
    }
    fusions
}

impl Passes {
    /// Fuses batch norms with the rectifiers behind them in training. The rank must hold all parameters during a whole pass, and must
    /// run all layers.
    pub fn fuse(&mut self) {
        self.fusions = fusions(&self.network, &self.operations, &self.precision);
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

    /// Weight and bias of batch norm `norm`.
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

    /// The gradient before rectifier `l` of a sum with batch norm `norm`; keeps the norm's sums for its own phase.
    pub(crate) fn sum_relu_back(
        &mut self,
        l: usize,
        norm: usize,
        with: &PassContext<'_, '_>,
    ) -> Result<Memory> {
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
