//! The phases of a micro-batch on the CPU.

use super::groups::MeshGroups;
use super::observed::Observed;
use super::peers::AxisPeers;
use super::unit::Tensor;
use super::worker::{StepTask, Worker};
use super::{MeshAxis, Slot};
use crate::costs::accumulate_cost;
use crate::engine::RankEngine;
use crate::model::{LayerPass, Objective};
use crate::timing::{StepWork, work, work_of};
use crate::{Phase, Result};
use allfold_collectives::ReduceOp;
use allfold_kernels::nn::{Float, add_to};
use std::ops::Range;

/// The ranks along an axis during a phase of a micro-batch, whose number `micro` counts from 1.
fn peers<'p, F: Float>(
    groups: &'p MeshGroups<'_>,
    axis: Option<MeshAxis>,
    observed: &'p mut Observed,
    phase: Phase,
    micro: u32,
) -> AxisPeers<'p, F> {
    AxisPeers {
        group: axis.and_then(|axis| groups.along(axis)),
        world: groups.world,
        observed,
        work: (work_of(phase), (micro as usize).checked_sub(1)),
        narrow: false,
        shift: None,
        failed: None,
    }
}

impl<F: Float> Worker<'_, F> {
    /// The unit of a layer's parameters, and the range of their elements in that unit.
    fn range_of(&self, layer: usize) -> (usize, Range<usize>) {
        let (unit, values) = (self.place.units_of_layers[layer], self.place.outline.values_of(layer));
        if values.is_empty() {
            return (unit, 0..0);
        }
        let start = self.units[unit].values.start;
        (unit, values.start - start..values.end - start)
    }

    /// Sums the totals of a synchronised layer over the data axis.
    pub(super) fn sum_totals(&mut self, slot: Slot) -> Result<()> {
        let mut totals = std::mem::take(&mut self.slot(slot).acts.totals);
        let before = self.groups.world.now();
        self.groups.data().all_reduce(&mut totals, ReduceOp::Sum)?;
        self.waited_since(before);
        self.slot(slot).acts.totals = totals;
        Ok(())
    }

    /// Runs layer `l` forward in `phase`, for the first time or again.
    pub(super) fn forward(&mut self, phase: Phase, l: usize, slot: Slot) -> Result<()> {
        let (unit, range) = self.range_of(l);
        let draw_key = self.task.input.draw_key;
        let Worker { slots, units, network, buffers, on, groups, observed, .. } = self;
        let slot = &mut slots.all[slot.0];
        let draw_key = draw_key.after(slot.first);
        let mut peers = peers(groups, network.layers()[l].traits().axis, observed, phase, slot.micro);
        peers.narrow = on.amp.is_narrow(l);
        let params = if range.is_empty() { &[] } else { &units[unit].params.here("parameters")?[range] };
        let buffers = &mut buffers[network.buffers_of(l)];
        let pass = LayerPass { n: slot.n, train: true, params, buffers, draw_key, peers: &mut peers };
        slot.acts.forward(on, network, l, pass);
        peers.failed.map_or(Ok(()), Err)
    }

    /// Whether the gradient of `l`, a layer that uses the parameters of an `owner`, is first added to the owner's gradient of the
    /// same micro-batch, before both join the gradients of the previous ones: a sum in the order that one layer alone would have.
    fn waits_for_owner(&self, l: usize, slot: Slot) -> bool {
        let owner = self.place.outline.owner(l);
        let owned =
            self.groups.along(MeshAxis::Pipeline).is_none() && self.place.outline.weight_grads()[owner];
        owner != l && owned && self.begun[owner] && self.slots.all[slot.0].micro > 1
    }

    /// Charges the time in which a parameter's gradient was added to that of the previous micro-batches.
    pub(super) fn charge_accumulated(&mut self, param: usize, slot: Slot) {
        if self.slots.all[slot.0].micro > 1 {
            let (start, elements) = (self.groups.world.now(), self.network.params()[param].range.len());
            self.groups.world.charge(&work(accumulate_cost::<F>(elements)));
            self.did(StepWork::WeightGrad, Some(self.slots.all[slot.0].micro as usize - 1), start);
        }
    }

    pub(super) fn weight_grad(&mut self, l: usize, slot: Slot) -> Result<()> {
        let (unit, range) = self.range_of(l);
        // Where layers of several passes share parameters, the previous gradient may still be in an exchange.
        if let Some(exchange) = self.units[unit].unfinished {
            self.finish(exchange, unit)?;
        }
        if matches!(self.units[unit].grads, Tensor::Absent) {
            let buffer = self.whole_unit_buffer(self.units[unit].padded);
            self.units[unit].grads = Tensor::Here(buffer);
            let layers = self.place.units[unit].layers.clone();
            self.begun[layers].fill(false);
        }
        let owner = self.place.outline.owner(l);
        let waits = self.waits_for_owner(l, slot);
        let Worker { slots, units, network, on, begun, groups, observed, .. } = self;
        let (slot, unit) = (&mut slots.all[slot.0], &mut units[unit]);
        let axis = network.layers()[l].traits().axis;
        let mut peers = peers(groups, axis, observed, Phase::WeightGrad(l), slot.micro);
        peers.narrow = on.amp.is_narrow(l);
        let (layer, tied) = (&network.layers()[l], std::mem::take(&mut slot.tied_grads[owner]));
        let keeps = layer.traits().needs_gradients || layer.sync_len().1 > 0;
        let params = &unit.params.here("parameters")?[range.clone()];
        let grads = &mut unit.grads.here_mut("gradients")?[range];
        if !begun[owner] && !keeps && !waits {
            slot.acts.weight_grad(on, network, (l, slot.n), (params, grads), &mut peers);
        } else {
            let mut own = on.pool.take(grads.len());
            slot.acts.weight_grad(on, network, (l, slot.n), (params, &mut own), &mut peers);
            if !tied.is_empty() {
                add_to(&mut own, &tied);
                on.pool.push(tied);
            }
            match begun[owner] {
                _ if waits => {}
                true => add_to(grads, &own),
                false => grads.copy_from_slice(&own),
            }
            match (waits, keeps) {
                (true, _) => slot.tied_grads[owner] = own,
                (_, true) => slot.own_grads[l] = own,
                _ => on.pool.push(own),
            }
        }
        begun[owner] = true;
        slot.weights_done(on, l);
        peers.failed.map_or(Ok(()), Err)
    }

    pub(super) fn input_grad(&mut self, l: usize, slot: Slot) -> Result<()> {
        let (unit, range) = self.range_of(l);
        let Worker { slots, units, network, on, groups, observed, .. } = self;
        let slot = &mut slots.all[slot.0];
        let axis = network.layers()[l].traits().axis;
        let mut peers = peers(groups, axis, observed, Phase::InputGrad(l), slot.micro);
        peers.narrow = on.amp.is_narrow(l);
        let params = if range.is_empty() { &[] } else { &units[unit].params.here("parameters")?[range] };
        let grads = std::mem::take(&mut slot.own_grads[l]);
        let keep = slot.uses.inputs_done(l);
        slot.acts.input_grad(on, network, (l, slot.n), (params, &grads), keep, &mut peers);
        if !grads.is_empty() {
            on.pool.push(grads);
        }
        peers.failed.map_or(Ok(()), Err)
    }

    pub(super) fn add_loss(&mut self, slot: Slot) -> Result<()> {
        let Worker { slots, network, on, task: StepTask { input, .. }, groups, observed, result, .. } = self;
        let slot = &mut slots.all[slot.0];
        let axis = network.class_split().map(|_| MeshAxis::Tensor);
        let mut peers = peers(groups, axis, observed, Phase::Loss, slot.micro);
        let scale = F::from_f64(slot.share * input.weight * input.loss_scale);
        let labels = std::mem::take(&mut slot.labels);
        let objective = Objective { labels: &labels, scale };
        let loss = slot.acts.loss(on, network, objective, &mut peers);
        slot.labels = labels;
        result.loss += slot.share * loss.to_f64();
        if !result.loss.is_finite() && result.not_finite.is_none() {
            let layer = slot.acts.first_not_finite();
            let name = |at: usize| at.checked_sub(1).map_or("the input", |layer| &network.names()[layer]);
            result.not_finite = layer.map(|at| name(at).to_string());
        }
        peers.failed.map_or(Ok(()), Err)
    }
}
