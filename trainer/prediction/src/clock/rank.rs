//! [`RankEngine`] on a clock.

use super::Queue;
use super::exchanges::Pending;
use super::{ClockRank, ClockSlot};
use crate::ElementPass;
use allfold_collectives::{Collective, DType};
use allfold_sim::Picos;
use allfold_trainer::engine::{
    Boundary, Keep, MeshAxis, RankEngine, RankPlace, Route, Slot, UnitExchange, filled_micro_batches,
    micro_batch,
};
use allfold_trainer::timing::{BucketTimes, StepWork, work_of};
use allfold_trainer::{Phase, Result, layer_of};
use std::collections::BTreeSet;

impl ClockRank<'_> {
    fn slot(&mut self, slot: Slot) -> &mut ClockSlot {
        if self.slots.len() <= slot.0 {
            self.slots.resize(slot.0 + 1, ClockSlot::default());
        }
        &mut self.slots[slot.0]
    }

    /// Gathers the gradient of a layer's output, before the first of the layer's two backward passes over a micro-batch.
    fn gather_gradient(&mut self, phase: Phase, at: Slot, micro: Option<usize>) -> Result<()> {
        let (Phase::WeightGrad(l) | Phase::InputGrad(l)) = phase else { return Ok(()) };
        let Some(axis) = self.with.costs.axis(l) else { return Ok(()) };
        let slot = self.slot(at);
        let (n, is_first) = (slot.n, slot.gathered.insert(l));
        if !is_first {
            return Ok(());
        }
        let calls = self.with.costs.gather_calls(l, n);
        self.exchanges.call_peers(&mut self.clock, axis, calls, phase, micro)
    }

    /// Posts one end of a message of a micro-batch.
    fn post(&mut self, what: Boundary, slot: Slot, route: Route, sends: bool) -> Result<Pending> {
        let (Boundary::Activation(act) | Boundary::Gradient(act)) = what;
        let bytes = self.slot(slot).n * self.with.costs.activation(act) * self.with.costs.element();
        self.exchanges.post(self.number, self.clock.now, route, bytes, sends)
    }
}

impl RankEngine for ClockRank<'_> {
    fn place(&self) -> &RankPlace {
        &self.place
    }

    fn step_number(&self) -> u64 {
        self.step
    }

    fn steps_left(&self) -> u64 {
        self.steps_left
    }

    fn is_copied(&self, unit: usize) -> bool {
        let trains = self.place.outline.trains_some_of(&self.units[unit].layout.values);
        self.exchanges.copies[unit].is_some() && trains
    }

    fn micro_batches(&self, of: usize) -> usize {
        if self.with.rules.uneven { of } else { filled_micro_batches(self.samples, of) }
    }

    fn load(&mut self, micro: usize, of: usize, slot: Slot) -> Result<()> {
        let n = micro_batch(self.samples, micro, of).len();
        *self.slot(slot) = ClockSlot { n, micro: micro + 1, gathered: BTreeSet::new() };
        self.memory.iter_mut().for_each(|memory| memory.load((n, micro + 1), slot));
        Ok(())
    }

    fn run(&mut self, phase: Phase, at: Slot) -> Result<()> {
        let (costs, &mut ClockSlot { n, micro, .. }) = (self.with.costs, self.slot(at));
        let (start, waited, what) =
            (self.clock.now, self.clock.time.exposed, (work_of(phase), micro.checked_sub(1)));
        if let Phase::Ready(param) = phase {
            if micro > 1 {
                let takes = costs.over(ElementPass::Accumulate, costs.params()[param].range.len());
                self.clock.does(StepWork::WeightGrad, what.1, takes);
            }
            return Ok(());
        }
        if let Phase::WeightGrad(l) = phase
            && let unit = self.place.units_of_layers[l]
            && let Some(exchange) = self.units[unit].unfinished
        {
            self.finish(exchange, unit)?;
        }
        let layer = layer_of(phase);
        let axis = layer.and_then(|l| costs.axis(l)).or((phase == Phase::Loss).then_some(MeshAxis::Tensor));
        let charged =
            !matches!(phase, Phase::SyncBackward(_)) && !layer.is_some_and(|l| costs.charges_itself(l));
        let takes = if charged { costs.takes(phase, n) } else { Picos::ZERO };
        // The computation of a layer that exchanges values comes before its exchanges, that of the loss after them.
        if phase != Phase::Loss {
            self.clock.does(what.0, what.1, takes);
        }
        if let Some(axis) = axis.filter(|axis| self.position(*axis).size > 1) {
            self.gather_gradient(phase, at, what.1)?;
            self.exchanges.call_peers(&mut self.clock, axis, costs.peer_calls(phase, n), phase, what.1)?;
        }
        if phase == Phase::Loss {
            self.clock.does(what.0, what.1, takes);
        }
        self.memory.iter_mut().for_each(|memory| memory.run(phase, at));
        if matches!(phase, Phase::Forward(_) | Phase::SyncForward(_)) {
            self.clock.time.forward += (self.clock.now - start) - (self.clock.time.exposed - waited);
        }
        if let Phase::SyncForward(_) | Phase::SyncBackward(_) = phase {
            let data = self.exchanges.along(MeshAxis::Data);
            self.run_collective(data, Collective::AllReduce, costs.sync_len(phase), DType::F64)?;
        }
        Ok(())
    }

    fn forget(&mut self, slot: Slot) {
        self.memory.iter_mut().for_each(|memory| memory.forget(slot));
    }

    fn start(&mut self, exchange: UnitExchange, unit: usize) -> Result<()> {
        let (costs, dtype) = (self.with.costs, self.with.dtype());
        let padded = self.units[unit].layout.padded;
        let (sharers, holders) = (self.place.sharers(unit), self.place.holders(unit));
        let [sharing, holding, mean] =
            [sharers, holders, MeshAxis::Data].map(|axis| self.position(axis).size);
        if exchange == UnitExchange::GatherParams {
            self.memory.iter_mut().for_each(|memory| memory.units.gather(unit));
            if sharing > 1 {
                let (queue, count) = (self.exchanges.along(sharers), padded / sharing);
                let exchange =
                    self.exchanges.start(self.clock.now, queue, Collective::AllGather, count, dtype)?;
                self.units[unit].gathering = Some(exchange);
            }
            return Ok(());
        }
        let (ready, elements) = (self.clock.now, self.units[unit].layout.values.len());
        if mean > 1 {
            self.clock.does(StepWork::Divide, None, costs.over(ElementPass::Pack, elements));
        }
        let values = &self.units[unit].layout.values;
        let inside = |range: &std::ops::Range<usize>| values.start <= range.start && range.end <= values.end;
        let params = costs.params().iter().filter(|place| inside(&place.range)).count();
        let (sent, bytes) = (self.clock.now, (elements * costs.element()) as u64);
        self.clock.log.push(BucketTimes { bucket: unit, params, bytes, ready, sent, done: sent });
        self.units[unit].unfinished = Some(exchange);
        let (axis, size, collective, count) = match exchange {
            UnitExchange::ReduceScatterGrad => {
                (sharers, sharing, Collective::ReduceScatter, padded / sharing)
            }
            _ => (holders, holding, Collective::AllReduce, padded),
        };
        if size > 1 {
            let queue = self.exchanges.along(axis);
            let exchange = self.exchanges.start(self.clock.now, queue, collective, count, dtype)?;
            self.units[unit].reducing = Some(exchange);
        }
        Ok(())
    }

    fn finish(&mut self, exchange: UnitExchange, unit: usize) -> Result<()> {
        let pending = match exchange {
            UnitExchange::GatherParams => self.units[unit].gathering.take(),
            _ if self.units[unit].unfinished.take().is_none() => None,
            _ => {
                self.memory.iter_mut().for_each(|memory| memory.units.reduced(unit));
                self.units[unit].reducing.take()
            }
        };
        let Some(pending) = pending else { return Ok(()) };
        let done = self.wait(pending)?;
        if exchange != UnitExchange::GatherParams
            && let Some(times) = self.clock.log.iter_mut().rfind(|times| times.bucket == unit)
        {
            times.done = done;
        }
        Ok(())
    }

    fn release(&mut self, unit: usize) {
        self.memory.iter_mut().for_each(|memory| memory.units.release(unit));
    }

    fn start_replica_sum(&mut self, unit: usize) -> Result<()> {
        let own = &self.units[unit];
        let is_whole = own.layout.pieces.is_empty() || matches!(own.keep, Keep::Whole | Keep::First);
        if self.with.mesh.shard == self.with.mesh.data || is_whole || own.summing.is_some() {
            return Ok(());
        }
        let (count, dtype) = (own.layout.own.len(), self.with.dtype());
        let queue = self.exchanges.along(MeshAxis::Replica);
        let sum = self.exchanges.start(self.clock.now, queue, Collective::AllReduce, count, dtype)?;
        self.units[unit].summing = Some(sum);
        self.memory.iter_mut().for_each(|memory| memory.units.keep_part(unit));
        Ok(())
    }

    fn sum_copies(&mut self, unit: usize) -> Result<()> {
        if self.exchanges.copies[unit].is_none() {
            return Ok(());
        }
        let (count, dtype) = (self.units[unit].layout.values.len(), self.with.dtype());
        self.run_collective(Queue::Copies(unit), Collective::AllReduce, count, dtype)
    }

    fn send(&mut self, what: Boundary, slot: Slot, to: Route) -> Result<()> {
        self.memory.iter_mut().for_each(|memory| memory.send(what, slot));
        let message = self.post(what, slot, to, true)?;
        self.sent.push(message);
        Ok(())
    }

    fn receive(&mut self, what: Boundary, slot: Slot, from: Route) -> Result<()> {
        self.memory.iter_mut().for_each(|memory| memory.receive(what, slot));
        let message = self.post(what, slot, from, false)?;
        self.wait(message).map(drop)
    }

    fn broadcast(&mut self, unit: usize) -> Result<()> {
        let (count, dtype) = (self.units[unit].layout.padded, self.with.dtype());
        self.run_collective(self.exchanges.along(MeshAxis::Data), Collective::Broadcast, count, dtype)
    }

    fn reduce(&mut self, unit: usize) -> Result<()> {
        let (count, dtype) = (self.units[unit].layout.padded, self.with.dtype());
        self.run_collective(self.exchanges.along(MeshAxis::Data), Collective::Reduce, count, dtype)
    }

    fn update(&mut self) -> Result<()> {
        for message in std::mem::take(&mut self.sent) {
            self.wait(message)?;
        }
        self.wait_for_pushes()?;
        if let Some(memory) = &mut self.memory {
            memory.all_arrived();
            memory.note();
        }
        let (before, waited) = (self.clock.now, self.clock.time.exposed);
        self.move_params()?;
        self.clock.time.optimiser += (self.clock.now - before) - (self.clock.time.exposed - waited);
        Ok(())
    }
}
