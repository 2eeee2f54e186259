//! [`RankEngine`](super::RankEngine) on the CPU.

use super::slot::Slots;
use super::unit::Tensor;
use super::worker::{StepTask, Worker};
use super::{
    Boundary, Keep, MeshAxis, RankEngine, RankPlace, Route, Slot, UnitExchange, filled_micro_batches,
    micro_batch,
};
use crate::costs::pack_cost;
use crate::model::Activations;
use crate::timing::{BucketTimes, LayerSpan, StepWork, work, work_of};
use crate::{Error, Network, Phase, Result};
use allfold_collectives::{Buffer, Rank, ReduceOp};
use allfold_kernels::nn::{Float, add_to, divide};
use allfold_networks::layer_of;
use allfold_sim::DeviceWork;

/// The number of elements of an activation of `n` samples.
fn elements<F: Float>(network: &Network<F>, act: usize, n: usize) -> usize {
    n * act.checked_sub(1).map_or_else(|| network.inputs(), |layer| network.layers()[layer].outputs())
}

impl<F: Float> RankEngine for Worker<'_, F> {
    fn place(&self) -> &RankPlace {
        &self.place
    }

    fn step_number(&self) -> u64 {
        u64::from(self.task.input.draw_key.step)
    }

    fn steps_left(&self) -> u64 {
        self.task.input.steps_left
    }

    fn is_copied(&self, unit: usize) -> bool {
        self.groups.copies(unit).is_some() && self.place.outline.trains_some_of(&self.units[unit].values)
    }

    fn micro_batches(&self, of: usize) -> usize {
        if self.config.data.uneven || !self.config.parallel.shares.is_empty() {
            return of;
        }
        filled_micro_batches(self.task.batch.labels.len() / self.network.rows(), of)
    }

    fn load(&mut self, micro: usize, of: usize, slot: Slot) -> Result<()> {
        self.slot(slot);
        let (inputs, rows) = (self.network.inputs(), self.network.rows());
        let samples = self.task.batch.labels.len() / rows;
        let part = micro_batch(samples, micro, of);
        self.network.normalises(part.len())?;
        let Worker { slots: Slots { all, readers }, task, on, place, .. } = self;
        let (slot, StepTask { batch, input, .. }) = (&mut all[slot.0], task);
        slot.clear(on);
        slot.uses.begin(readers, &place.outline);
        (slot.n, slot.micro, slot.first) = (part.len(), micro as u32 + 1, part.start);
        slot.share = part.len() as f64 / samples.max(1) as f64;
        let parts = place.loss_parts() as f64;
        slot.acts.scale = F::from_f64(slot.share * input.weight * input.loss_scale / parts);
        slot.labels.clear();
        slot.labels.extend_from_slice(&batch.labels[part.start * rows..part.end * rows]);
        if readers.first[0] > 0 {
            slot.acts.load(&mut on.pool, &batch.x[part.start * inputs..part.end * inputs]);
        }
        Ok(())
    }

    fn run(&mut self, phase: Phase, at: Slot) -> Result<()> {
        let n = self.slot(at).n;
        let (start, waited) = (self.groups.world.now(), self.observed.waited);
        self.observed.since = start;
        // The computation of a layer that exchanges values comes before its exchanges, so it is charged first.
        let layer = layer_of(phase).map(|l| &self.network.layers()[l]);
        let exchanges = layer.is_some_and(|layer| layer.traits().axis.is_some());
        let narrow = layer_of(phase).is_some_and(|l| self.on.amp.is_narrow(l));
        let cost = DeviceWork { narrow, ..work(self.network.cost(phase, n)) };
        if exchanges && !layer.is_some_and(|layer| layer.traits().charges_itself) {
            self.groups.world.charge(&cost);
        }
        match phase {
            Phase::SyncForward(l) => {
                let len = self.network.sync_len(phase);
                self.slots.all[at.0].acts.forward_sums(&self.network, l, n, len);
            }
            Phase::Forward(l) => self.forward(phase, l, at)?,
            Phase::Recompute(l) => {
                let Slots { all, readers } = &mut self.slots;
                all[at.0].uses.recompute(readers, &self.network, l);
                self.forward(phase, l, at)?;
            }
            Phase::Loss => self.add_loss(at)?,
            Phase::WeightGrad(l) => self.weight_grad(l, at)?,
            Phase::SyncBackward(l) => {
                let (len, slot) = (self.network.sync_len(phase), &mut self.slots.all[at.0]);
                let grads = std::mem::take(&mut slot.own_grads[l]);
                slot.acts.backward_sums(&self.network, l, &grads, len);
                slot.own_grads[l] = grads;
            }
            Phase::InputGrad(l) => self.input_grad(l, at)?,
            Phase::Ready(param) => {
                self.charge_accumulated(param, at);
                return Ok(());
            }
        }
        if !exchanges && !matches!(phase, Phase::SyncBackward(_)) {
            self.groups.world.charge(&cost);
        }
        if matches!(phase, Phase::Forward(_) | Phase::SyncForward(_)) {
            self.result.forward += (self.groups.world.now() - start) - (self.observed.waited - waited);
        }
        let micro = self.slots.all[at.0].micro as usize;
        self.did(work_of(phase), micro.checked_sub(1), self.observed.since);
        if self.observed.layers_wanted {
            let (layer, end) = (layer_of(phase), self.groups.world.now());
            self.observed.layers.push(LayerSpan { layer, work: work_of(phase), start, end });
        }
        self.note_memory();
        if let Phase::SyncForward(l) | Phase::SyncBackward(l) = phase {
            self.sum_totals(at)?;
            if matches!(phase, Phase::SyncForward(_)) {
                self.network.normalises_all(l, &self.slots.all[at.0].acts.totals)?;
            }
        }
        let Worker { slots, network, on, .. } = self;
        slots.all[at.0].after(on, network, phase);
        Ok(())
    }

    fn forget(&mut self, slot: Slot) {
        self.slot(slot);
        self.slots.all[slot.0].clear(&mut self.on);
    }

    fn start(&mut self, exchange: UnitExchange, unit: usize) -> Result<()> {
        let (sharers, holders) = (self.place.sharers(unit), self.place.holders(unit));
        if exchange == UnitExchange::GatherParams {
            let size = self.place.position(sharers).size;
            if self.units[unit].keep == Keep::Sharded {
                let mut whole = self.whole_unit_buffer(self.units[unit].padded);
                let state = &self.units[unit];
                whole[state.own.clone()].copy_from_slice(&state.param_part);
                self.units[unit].params = Tensor::Here(whole);
            }
            if size > 1 {
                let whole = self.units[unit].params.send_away("parameters")?;
                self.units[unit].gathering =
                    Some(self.groups.group(sharers).all_gather_in_place_async(whole)?);
            }
            return Ok(());
        }
        let axis = match exchange {
            UnitExchange::ReduceScatterGrad => sharers,
            _ => holders,
        };
        let [mean, size] = [MeshAxis::Data, axis].map(|axis| self.place.position(axis).size);
        let now = self.groups.world.now();
        let mut whole = self.units[unit].grads.send_away("gradients")?;
        let elements = self.units[unit].values.len();
        if mean > 1 {
            divide(&mut whole[..elements], F::from_f64(mean as f64));
            self.groups.world.charge(&work(pack_cost::<F>(elements)));
            self.did(StepWork::Divide, None, now);
        }
        let bytes = (elements * size_of::<F>()) as u64;
        let sent = self.groups.world.now();
        let params = self.network.params().iter();
        let values = &self.units[unit].values;
        let params =
            params.filter(|place| values.start <= place.range.start && place.range.end <= values.end).count();
        self.observed.log.push(BucketTimes { bucket: unit, params, bytes, ready: now, sent, done: sent });
        self.units[unit].unfinished = Some(exchange);
        if size == 1 {
            self.units[unit].grads = Tensor::Here(whole);
            return Ok(());
        }
        let group = self.groups.group(axis);
        let work = match exchange {
            UnitExchange::ReduceScatterGrad => group.reduce_scatter_in_place_async(whole, ReduceOp::Sum)?,
            _ => group.all_reduce_async(whole, ReduceOp::Sum)?,
        };
        self.units[unit].reducing = Some(work);
        Ok(())
    }

    fn finish(&mut self, exchange: UnitExchange, unit: usize) -> Result<()> {
        if exchange == UnitExchange::GatherParams {
            if let Some(work) = self.units[unit].gathering.take() {
                let (whole, _) = self.wait(work)?;
                self.units[unit].params = Tensor::Here(whole);
            }
            return Ok(());
        }
        if self.units[unit].unfinished.take().is_none() {
            return Ok(());
        }
        if let Some(work) = self.units[unit].reducing.take() {
            let (whole, done) = self.wait(work)?;
            self.units[unit].grads = Tensor::Here(whole);
            if let Some(times) = self.observed.log.iter_mut().rfind(|times| times.bucket == unit) {
                times.done = done;
            }
        }
        if self.units[unit].shards_gradients() {
            let state = &mut self.units[unit];
            let whole = state.grads.send_away("gradients")?;
            state.grads = Tensor::Absent;
            let part = &whole[state.own.clone()];
            if state.grad_part_begun {
                add_to(&mut state.grad_part, part);
            } else {
                state.grad_part.clear();
                state.grad_part.extend_from_slice(part);
            }
            state.grad_part_begun = true;
            self.units.free.put(whole);
        }
        Ok(())
    }

    fn release(&mut self, unit: usize) {
        if self.units[unit].keep == Keep::Sharded
            && let Tensor::Here(whole) = std::mem::replace(&mut self.units[unit].params, Tensor::Absent)
        {
            self.units.free.put(whole);
        }
    }

    fn start_replica_sum(&mut self, unit: usize) -> Result<()> {
        let Some(replicas) = self.groups.along(MeshAxis::Replica) else { return Ok(()) };
        let unit = &mut self.units[unit];
        if unit.summing.is_some() || unit.pieces.is_empty() || matches!(unit.keep, Keep::Whole | Keep::First)
        {
            return Ok(());
        }
        let part = match unit.shards_gradients() {
            true => std::mem::take(&mut unit.grad_part),
            false => unit.grads.here("gradients")?[unit.own.clone()].to_vec(),
        };
        let elements = part.len();
        unit.summing = Some((replicas.all_reduce_async(part.into(), ReduceOp::Sum)?, elements));
        Ok(())
    }

    fn sum_copies(&mut self, unit: usize) -> Result<()> {
        let Some(copies) = self.groups.copies(unit) else { return Ok(()) };
        let before = self.groups.world.now();
        let elements = self.units[unit].values.len();
        let grads = &mut self.units[unit].grads.here_mut("gradients")?[..elements];
        copies.all_reduce(grads, ReduceOp::Sum)?;
        self.waited_since(before);
        Ok(())
    }

    fn send(&mut self, what: Boundary, slot: Slot, to: Route) -> Result<()> {
        let Worker { slots, network, on, .. } = self;
        let slot = &mut slots.all[slot.0];
        let values: Buffer<F> = match what {
            Boundary::Activation(act) => {
                let act_values = slot.acts.act(network, act);
                let mut values = on.pool.take(act_values.len());
                values.copy_from_slice(act_values);
                slot.read_once(on, network.storage_of(act));
                values.into()
            }
            Boundary::Gradient(act) => {
                let gone = || Error::Strategy(format!("there is no gradient of activation {act} to send"));
                slot.acts.take_grad(act).ok_or_else(gone)?.into()
            }
        };
        let (elements, (channel, peer)) = (values.len(), self.route(to)?);
        let work = channel.send_async(values, peer)?;
        self.messages.sent.push(work);
        self.away += elements;
        Ok(())
    }

    fn receive(&mut self, what: Boundary, slot: Slot, from: Route) -> Result<()> {
        let (Boundary::Activation(act) | Boundary::Gradient(act)) = what;
        if matches!(what, Boundary::Activation(_)) {
            // Frees the samples that the rank has loaded, if the first rank sends it others.
            self.slots.all[slot.0].acts.free(self.network.storage_of(act), &mut self.on.pool);
        }
        let values = self.on.pool.take(elements(&self.network, act, self.slots.all[slot.0].n));
        let (channel, peer) = self.route(from)?;
        let work = channel.recv_async(values.into(), peer)?;
        let (values, _) = self.wait(work)?;
        let acts: &mut Activations<F> = &mut self.slots.all[slot.0].acts;
        match what {
            Boundary::Activation(act) => acts.put(self.network.storage_of(act), values.into_vec()),
            Boundary::Gradient(act) => acts.put_grad(act, values.into_vec()),
        }
        Ok(())
    }

    fn broadcast(&mut self, unit: usize) -> Result<()> {
        let before = self.groups.world.now();
        let params = self.units[unit].params.here_mut("parameters")?;
        self.groups.data().broadcast(params, Rank(0))?;
        self.waited_since(before);
        Ok(())
    }

    fn reduce(&mut self, unit: usize) -> Result<()> {
        let before = self.groups.world.now();
        let grads = self.units[unit].grads.here_mut("gradients")?;
        self.groups.data().reduce(grads, ReduceOp::Sum, Rank(0))?;
        self.waited_since(before);
        Ok(())
    }

    fn update(&mut self) -> Result<()> {
        let sent = std::mem::take(&mut self.messages.sent);
        self.recycle_all(sent)?;
        let (before, waited) = (self.groups.world.now(), self.observed.waited);
        self.note_memory();
        self.move_params()?;
        self.result.optimiser += (self.groups.world.now() - before) - (self.observed.waited - waited);
        Ok(())
    }
}
