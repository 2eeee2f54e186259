//! The engine of the CPU.

use super::groups::Groups;
use super::slot::{self, SlotState};
use super::unit::{Tensor, UnitState};
use super::{Axis, AxisPosition, Boundary, Keep, Mesh, RankEngine, Route, Slot, Unit, UnitExchange};
use crate::model::{Activations, Arithmetic, LayerPass, normalises, normalises_all};
use crate::network::layer_of;
use crate::timing::{BucketTimes, work};
use crate::{Batch, Config, DrawKey, Error, GradScaler, Network, Objective, Outline, Phase, Result};
use allfold_collectives::{Buffer, Communicator, Rank, ReduceOp, Work};
use allfold_kernels::nn::{Float, add_to, divide};
use allfold_sim::Picos;
use std::ops::Range;
use std::sync::Arc;

/// What a step needs besides its batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepInput {
    /// The learning rate.
    pub lr: f64,
    /// The loss scale, 1 without one.
    pub loss_scale: f64,
    /// The key of the step's random draws, before its first micro-batch.
    pub draw_key: DrawKey,
}

/// What came of a step on a rank.
#[derive(Clone, Debug)]
pub(crate) struct StepResult {
    /// The mean loss of the samples of this rank's place on the data axis.
    pub loss: f64,
    /// Whether a gradient that is not finite kept all ranks from moving.
    pub skipped: bool,
    /// The layer whose output was the first that is not finite.
    pub not_finite: Option<String>,
    /// Time of forward phases.
    pub forward: Picos,
    /// Time spent waiting for other ranks.
    pub exposed: Picos,
    /// Time of the update.
    pub optimiser: Picos,
}

/// A rank that computes on the CPU: its units, its micro-batches in flight and its communicators.
pub(crate) struct Worker<'a, F: Float> {
    pub(super) groups: Groups<'a>,
    pub(super) config: &'a Config,
    pub(super) network: Network<F>,
    pub(super) outline: Arc<Outline>,
    pub(super) specs: Vec<Unit>,
    pub(super) units: Vec<UnitState<F>>,
    /// For each layer: the unit of its parameters.
    unit_of: Vec<usize>,
    /// For each layer: whether this step's gradients of its parameters are begun.
    begun: Vec<bool>,
    /// All buffers, such as running statistics; those of this rank's layers count.
    pub(super) buffers: Vec<F>,
    slots: Vec<SlotState<F>>,
    readers: Vec<u32>,
    pub(super) on: Arithmetic<F>,
    /// Buffers of whole units that are not in use.
    spare: Vec<Buffer<F>>,
    /// What was sent and has perhaps not arrived.
    sent: Vec<Work<Buffer<F>>>,
    /// For each unit that several stages hold, on those stages: their communicator.
    copies: Vec<Option<Communicator>>,
    /// For each unit, the first stage that holds it.
    pub(super) holders: Vec<u32>,
    batch: Batch<F>,
    pub(super) input: StepInput,
    pub(super) scaler: Option<GradScaler>,
    pub(super) loss: f64,
    pub(super) skipped: bool,
    pub(super) not_finite: Option<String>,
    log: Vec<BucketTimes>,
    /// Time of forward phases, and time spent waiting, in this step.
    forward_time: Picos,
    pub(super) waited: Picos,
    update_time: Picos,
}

/// Spare buffers that a rank keeps: one that is gathered ahead, one in use, one that is reduced.
const SPARE: usize = 3;

impl<'a, F: Float> Worker<'a, F> {
    /// A rank of `mesh` that holds `specs` of the network, without parameters yet. Every rank of `world` must call it.
    ///
    /// # Errors
    /// Communicators that cannot be made, or an optimiser that is unknown.
    pub fn new(
        config: &'a Config,
        network: Network<F>,
        specs: Vec<Unit>,
        world: &'a Communicator,
        (mesh, channels): (Mesh, usize),
    ) -> Result<Worker<'a, F>> {
        let groups = Groups::new(world, mesh, channels)?;
        let outline = Arc::new(network.outline());
        let data = groups.position(Axis::Data);
        let make = |unit: &Unit| {
            let values = outline.values_in(&unit.layers);
            let place = (data.index, data.size);
            UnitState::new(unit.keep, values, place, outline.trained(), (config, network.params()))
        };
        let units = specs.iter().map(make).collect::<Result<Vec<_>>>()?;
        let unit_of = |layer: usize| {
            let owner = outline.owner(layer);
            specs.iter().position(|unit| unit.layers.contains(&owner)).unwrap_or_default()
        };
        let layers = outline.layers();
        let mut on = Arithmetic::new();
        if let Some(narrow) = config.narrow() {
            on.amp = crate::amp::Autocast::new(narrow, &network);
        }
        let mut worker = Worker {
            unit_of: (0..layers).map(unit_of).collect(),
            begun: vec![false; layers],
            readers: slot::readers(&network, &outline, &held_layers(&specs, &outline)),
            buffers: vec![F::ZERO; network.buffer_count()],
            slots: Vec::new(),
            on,
            spare: Vec::new(),
            sent: Vec::new(),
            copies: Vec::new(),
            holders: Vec::new(),
            batch: Batch::default(),
            input: StepInput { lr: 0.0, loss_scale: 1.0, draw_key: DrawKey::default() },
            scaler: None,
            loss: 0.0,
            skipped: false,
            not_finite: None,
            log: Vec::new(),
            forward_time: Picos::ZERO,
            waited: Picos::ZERO,
            update_time: Picos::ZERO,
            groups,
            config,
            network,
            outline,
            specs,
            units,
        };
        worker.split_copies()?;
        Ok(worker)
    }

    /// Finds out which stages hold each unit, and makes communicators of those that hold the same.
    fn split_copies(&mut self) -> Result<()> {
        let Some(pipeline) = &self.groups.pipeline else { return Ok(()) };
        let stage = pipeline.rank().0;
        for unit in &self.units {
            let held = unit.keep != Keep::Nothing;
            let mut holders = vec![0i64; pipeline.size() as usize];
            pipeline.all_gather(&[i64::from(held)], &mut holders)?;
            let first = holders.iter().position(|held| *held == 1).unwrap_or_default();
            self.holders.push(first as u32);
            self.copies.push(match holders.iter().sum::<i64>() > 1 {
                true => pipeline.split(held.then_some(0), stage)?,
                false => None,
            });
        }
        Ok(())
    }

    /// Whether this rank's copy of a unit is the one that counts in norms over all parameters.
    pub(super) fn counts(&self, unit: usize) -> bool {
        let copy = self.copies.get(unit).and_then(Option::as_ref);
        self.units[unit].keep != Keep::Nothing && copy.is_none_or(|copy| copy.rank() == Rank(0))
    }

    /// Begins a step over a batch.
    pub fn begin(&mut self, batch: Batch<F>, input: StepInput, scaler: Option<GradScaler>) {
        (self.batch, self.input, self.scaler) = (batch, input, scaler);
        (self.loss, self.skipped, self.not_finite) = (0.0, false, None);
        (self.forward_time, self.waited, self.update_time) = (Picos::ZERO, Picos::ZERO, Picos::ZERO);
        self.log.clear();
        self.begun.fill(false);
        self.units.iter_mut().for_each(|unit| unit.grad_part_begun = false);
    }

    /// Gives the batch back.
    pub fn take_batch(&mut self) -> Batch<F> {
        std::mem::take(&mut self.batch)
    }

    /// What came of the step.
    pub fn report(&mut self) -> StepResult {
        StepResult {
            loss: self.loss,
            skipped: self.skipped,
            not_finite: self.not_finite.take(),
            forward: self.forward_time,
            exposed: self.waited,
            optimiser: self.update_time,
        }
    }

    /// The exchanges of gradients in the last step.
    pub fn log(&self) -> &[BucketTimes] {
        &self.log
    }

    /// Bytes of buffers of whole units that wait to be used again.
    pub(super) fn spare_bytes(&self) -> u64 {
        (self.spare.iter().map(|buffer| buffer.len()).sum::<usize>() * size_of::<F>()) as u64
    }

    /// Bytes of activations, of what layers saved, and of gradients by activations.
    pub(super) fn activation_bytes(&self) -> [u64; 3] {
        let mut sum = [0, 0, self.on.pool.bytes()];
        for slot in &self.slots {
            sum.iter_mut().zip(slot.acts.bytes()).for_each(|(sum, bytes)| *sum += bytes);
        }
        sum
    }

    fn slot(&mut self, slot: Slot) -> &mut SlotState<F> {
        while self.slots.len() <= slot.0 {
            self.slots.push(SlotState::new(self.outline.layers()));
        }
        &mut self.slots[slot.0]
    }

    /// A buffer for a whole unit.
    pub(super) fn room(&mut self, elements: usize) -> Buffer<F> {
        match self.spare.iter().position(|buffer| buffer.len() == elements) {
            Some(at) => self.spare.swap_remove(at),
            None => self.groups.data().buffer(elements),
        }
    }

    fn recycle(&mut self, buffer: Buffer<F>) {
        if self.spare.len() == SPARE {
            self.spare.remove(0);
        }
        self.spare.push(buffer);
    }

    /// Waits for `work` and counts the time.
    fn wait(&mut self, work: Work<Buffer<F>>) -> Result<(Buffer<F>, Picos)> {
        let before = self.groups.world.now();
        let done = work.wait_timed()?;
        self.waited += self.groups.world.now() - before;
        Ok(done)
    }

    /// The elements of a layer's parameters within their unit.
    fn range_of(&self, layer: usize) -> (usize, Range<usize>) {
        let (unit, values) = (self.unit_of[layer], self.outline.values_of(layer));
        if values.is_empty() {
            return (unit, 0..0);
        }
        let start = self.units[unit].values.start;
        (unit, values.start - start..values.end - start)
    }

    /// The sum over the data axis of the totals of a synchronised layer.
    fn sum_totals(&mut self, slot: Slot) -> Result<()> {
        let mut totals = std::mem::take(&mut self.slot(slot).acts.totals);
        let before = self.groups.world.now();
        self.groups.data().all_reduce(&mut totals, ReduceOp::Sum)?;
        self.waited += self.groups.world.now() - before;
        self.slot(slot).acts.totals = totals;
        Ok(())
    }

    fn forward(&mut self, l: usize, slot: Slot) -> Result<()> {
        let (unit, range) = self.range_of(l);
        let mut draw_key = self.input.draw_key;
        let Worker { slots, units, network, buffers, on, .. } = self;
        let slot = &mut slots[slot.0];
        draw_key.micro += slot.micro;
        let params = if range.is_empty() { &[] } else { &units[unit].params.here("parameters")?[range] };
        let buffers = &mut buffers[network.buffers_of(l)];
        slot.acts.forward(on, network, l, LayerPass { n: slot.n, train: true, params, buffers, draw_key });
        Ok(())
    }

    fn weight_grad(&mut self, l: usize, slot: Slot) -> Result<()> {
        let (unit, range) = self.range_of(l);
        // Where layers of several passes share parameters, the gradient before may still be on its way.
        if let Some(exchange) = self.units[unit].unfinished {
            self.finish(exchange, unit)?;
        }
        if matches!(self.units[unit].grads, Tensor::Absent) {
            let room = self.room(self.units[unit].padded);
            self.units[unit].grads = Tensor::Here(room);
            let layers = self.specs[unit].layers.clone();
            self.begun[layers].fill(false);
        }
        let owner = self.outline.owner(l);
        let Worker { slots, units, network, on, begun, .. } = self;
        let (slot, unit) = (&mut slots[slot.0], &mut units[unit]);
        let layer = &network.layers()[l];
        let keeps = layer.needs_gradients() || layer.sync_len().1 > 0;
        let params = &unit.params.here("parameters")?[range.clone()];
        let grads = &mut unit.grads.here_mut("gradients")?[range];
        if !begun[owner] && !keeps {
            slot.acts.weight_grad(on, network, (l, slot.n), params, grads);
        } else {
            let mut own = on.pool.take(grads.len());
            slot.acts.weight_grad(on, network, (l, slot.n), params, &mut own);
            match begun[owner] {
                true => add_to(grads, &own),
                false => grads.copy_from_slice(&own),
            }
            if keeps { slot.own_grads[l] = own } else { on.pool.push(own) }
        }
        begun[owner] = true;
        slot.weights_done(on, l);
        Ok(())
    }

    fn input_grad(&mut self, l: usize, slot: Slot) -> Result<()> {
        let (unit, range) = self.range_of(l);
        let Worker { slots, units, network, on, .. } = self;
        let slot = &mut slots[slot.0];
        let params = if range.is_empty() { &[] } else { &units[unit].params.here("parameters")?[range] };
        let grads = std::mem::take(&mut slot.own_grads[l]);
        let keep = slot.inputs_done(l);
        slot.acts.input_grad(on, network, (l, slot.n), (params, &grads), keep);
        if !grads.is_empty() {
            on.pool.push(grads);
        }
        Ok(())
    }

    fn add_loss(&mut self, slot: Slot) {
        let Worker { slots, network, on, input, .. } = self;
        let slot = &mut slots[slot.0];
        let scale = F::from_f64(slot.share * input.loss_scale);
        let labels = std::mem::take(&mut slot.labels);
        let loss = slot.acts.loss(on, network, Objective { labels: &labels, scale, more: false });
        slot.labels = labels;
        self.loss += slot.share * loss.to_f64();
        if !self.loss.is_finite() && self.not_finite.is_none() {
            let layer = slot.acts.first_not_finite();
            let name =
                |at: usize| at.checked_sub(1).map_or("the input", |layer| &self.network.names()[layer]);
            self.not_finite = layer.map(|at| name(at).to_string());
        }
    }

    /// The communicator of a route and the peer's rank on it.
    fn route(&self, route: Route) -> Result<(&Communicator, Rank)> {
        let channel = self.groups.channel(route.channel);
        let channel =
            channel.ok_or_else(|| Error::Strategy(format!("there is no channel {}", route.channel)))?;
        Ok((channel, Rank(route.peer as u32)))
    }
}

/// The layers that a rank runs: the neighbours among its units together.
fn held_layers(specs: &[Unit], outline: &Outline) -> Vec<Range<usize>> {
    let mut held: Vec<Range<usize>> = Vec::new();
    for unit in specs.iter().filter(|unit| unit.keep != Keep::Nothing) {
        match held.last_mut() {
            Some(last) if last.end == unit.layers.start => last.end = unit.layers.end,
            _ => held.push(unit.layers.clone()),
        }
    }
    debug_assert!(held.iter().all(|layers| layers.end <= outline.layers()));
    held
}

/// The elements of an activation of `n` samples.
fn elements<F: Float>(network: &Network<F>, act: usize, n: usize) -> usize {
    n * act.checked_sub(1).map_or_else(|| network.inputs(), |layer| network.layers()[layer].outputs())
}

impl<F: Float> RankEngine for Worker<'_, F> {
    fn outline(&self) -> Arc<Outline> {
        self.outline.clone()
    }

    fn position(&self, axis: Axis) -> AxisPosition {
        self.groups.position(axis)
    }

    fn units(&self) -> &[Unit] {
        &self.specs
    }

    fn unit_of(&self, phase: Phase) -> Option<usize> {
        let layer =
            layer_of(phase).filter(|_| !matches!(phase, Phase::SyncForward(_) | Phase::SyncBackward(_)))?;
        (!self.outline.values_of(layer).is_empty()).then(|| self.unit_of[layer])
    }

    fn is_copied(&self, unit: usize) -> bool {
        let values = &self.units[unit].values;
        let trained = self.outline.trained().iter();
        self.copies.get(unit).is_some_and(Option::is_some)
            && trained.clone().any(|range| range.start < values.end && values.start < range.end)
    }

    fn micro_batches(&self, of: usize) -> usize {
        let samples = self.batch.labels.len() / self.network.rows();
        samples.div_ceil(samples.div_ceil(of.max(1)).max(1)).max(1)
    }

    fn load(&mut self, micro: usize, of: usize, slot: Slot) -> Result<()> {
        self.slot(slot);
        let (inputs, rows) = (self.network.inputs(), self.network.rows());
        let samples = self.batch.labels.len() / rows;
        let size = samples.div_ceil(of.max(1)).max(1);
        let part = (micro * size).min(samples)..((micro + 1) * size).min(samples);
        normalises(&self.network, part.len())?;
        let Worker { slots, batch, readers, on, outline, .. } = self;
        let slot = &mut slots[slot.0];
        slot.clear(on);
        slot.begin(readers, outline);
        (slot.n, slot.micro) = (part.len(), micro as u32 + 1);
        slot.share = part.len() as f64 / samples.max(1) as f64;
        slot.labels.clear();
        slot.labels.extend_from_slice(&batch.labels[part.start * rows..part.end * rows]);
        if readers[0] > 0 {
            slot.acts.load(&batch.x[part.start * inputs..part.end * inputs]);
        }
        Ok(())
    }

    fn run(&mut self, phase: Phase, at: Slot) -> Result<()> {
        let n = self.slot(at).n;
        let start = self.groups.world.now();
        match phase {
            Phase::SyncForward(l) => {
                let len = self.network.sync_len(phase);
                self.slots[at.0].acts.forward_sums(&self.network, l, n, len);
            }
            Phase::Forward(l) => self.forward(l, at)?,
            Phase::Loss => self.add_loss(at),
            Phase::WeightGrad(l) => self.weight_grad(l, at)?,
            Phase::SyncBackward(l) => {
                let (len, slot) = (self.network.sync_len(phase), &mut self.slots[at.0]);
                let grads = std::mem::take(&mut slot.own_grads[l]);
                slot.acts.backward_sums(&self.network, l, &grads, len);
                slot.own_grads[l] = grads;
            }
            Phase::InputGrad(l) => self.input_grad(l, at)?,
            Phase::Ready(_) => return Ok(()),
        }
        if !matches!(phase, Phase::SyncBackward(_)) {
            self.groups.world.charge(&work(self.network.cost(phase, n)));
        }
        if matches!(phase, Phase::Forward(_) | Phase::SyncForward(_)) {
            self.forward_time += self.groups.world.now() - start;
        }
        if let Phase::SyncForward(l) | Phase::SyncBackward(l) = phase {
            self.sum_totals(at)?;
            if matches!(phase, Phase::SyncForward(_)) {
                normalises_all(&self.network, l, &self.slots[at.0].acts.totals)?;
            }
        }
        let Worker { slots, network, on, .. } = self;
        slots[at.0].after(on, network, phase);
        Ok(())
    }

    fn forget(&mut self, slot: Slot) {
        self.slot(slot);
        self.slots[slot.0].clear(&mut self.on);
    }

    fn start(&mut self, exchange: UnitExchange, unit: usize) -> Result<()> {
        let size = self.position(Axis::Data).size;
        if exchange == UnitExchange::GatherParams {
            if self.units[unit].keep == Keep::Sharded {
                let mut whole = self.room(self.units[unit].padded);
                let state = &self.units[unit];
                whole[state.own.clone()].copy_from_slice(&state.param_part);
                self.units[unit].params = Tensor::Here(whole);
            }
            if size > 1 {
                let whole = self.units[unit].params.send_away("parameters")?;
                self.units[unit].gathering = Some(self.groups.data().all_gather_in_place_async(whole)?);
            }
            return Ok(());
        }
        let now = self.groups.world.now();
        let mut whole = self.units[unit].grads.send_away("gradients")?;
        let elements = self.units[unit].values.len();
        if size > 1 {
            divide(&mut whole[..elements], F::from_f64(size as f64));
            self.groups.world.charge(&work(crate::strategies::ddp::pack_cost::<F>(elements)));
        }
        let bytes = (elements * size_of::<F>()) as u64;
        let sent = self.groups.world.now();
        let params = self.network.params().iter();
        let values = &self.units[unit].values;
        let params =
            params.filter(|place| values.start <= place.range.start && place.range.end <= values.end).count();
        self.log.push(BucketTimes { bucket: unit, params, bytes, ready: now, sent, done: sent });
        self.units[unit].unfinished = Some(exchange);
        if size == 1 {
            self.units[unit].grads = Tensor::Here(whole);
            return Ok(());
        }
        let data = self.groups.data();
        let work = match exchange {
            UnitExchange::ReduceScatterGrad => data.reduce_scatter_in_place_async(whole, ReduceOp::Sum)?,
            _ => data.all_reduce_async(whole, ReduceOp::Sum)?,
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
            if let Some(times) = self.log.iter_mut().rfind(|times| times.bucket == unit) {
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
            self.recycle(whole);
        }
        Ok(())
    }

    fn release(&mut self, unit: usize) {
        if self.units[unit].keep == Keep::Sharded
            && let Tensor::Here(whole) = std::mem::replace(&mut self.units[unit].params, Tensor::Absent)
        {
            self.recycle(whole);
        }
    }

    fn sum_copies(&mut self, unit: usize) -> Result<()> {
        let Some(Some(copies)) = self.copies.get(unit) else { return Ok(()) };
        let before = self.groups.world.now();
        let elements = self.units[unit].values.len();
        let grads = &mut self.units[unit].grads.here_mut("gradients")?[..elements];
        copies.all_reduce(grads, ReduceOp::Sum)?;
        self.waited += self.groups.world.now() - before;
        Ok(())
    }

    fn send(&mut self, what: Boundary, slot: Slot, to: Route) -> Result<()> {
        let Worker { slots, network, on, .. } = self;
        let slot = &mut slots[slot.0];
        let values: Buffer<F> = match what {
            Boundary::Activation(act) => {
                let values = slot.acts.act(network, act).to_vec();
                slot.read_once(on, network.storage_of(act));
                values.into()
            }
            Boundary::Gradient(act) => {
                let gone = || Error::Strategy(format!("there is no gradient of activation {act} to send"));
                slot.acts.take_grad(act).ok_or_else(gone)?.into()
            }
        };
        let (channel, peer) = self.route(to)?;
        let work = channel.send_async(values, peer)?;
        self.sent.push(work);
        Ok(())
    }

    fn receive(&mut self, what: Boundary, slot: Slot, from: Route) -> Result<()> {
        let (Boundary::Activation(act) | Boundary::Gradient(act)) = what;
        let values = self.on.pool.take(elements(&self.network, act, self.slots[slot.0].n));
        let (channel, peer) = self.route(from)?;
        let work = channel.recv_async(values.into(), peer)?;
        let (values, _) = self.wait(work)?;
        let acts: &mut Activations<F> = &mut self.slots[slot.0].acts;
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
        self.waited += self.groups.world.now() - before;
        Ok(())
    }

    fn reduce(&mut self, unit: usize) -> Result<()> {
        let before = self.groups.world.now();
        let grads = self.units[unit].grads.here_mut("gradients")?;
        self.groups.data().reduce(grads, ReduceOp::Sum, Rank(0))?;
        self.waited += self.groups.world.now() - before;
        Ok(())
    }

    fn update(&mut self) -> Result<()> {
        for work in std::mem::take(&mut self.sent) {
            let (values, _) = self.wait(work)?;
            self.on.pool.push(values.into_vec());
        }
        let (before, waited) = (self.groups.world.now(), self.waited);
        self.move_params()?;
        self.update_time += (self.groups.world.now() - before) - (self.waited - waited);
        Ok(())
    }
}
