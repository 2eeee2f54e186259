//! A rank of the engine that computes on the CPU.

use super::bucketing::BucketState;
use super::groups::{MeshGroups, copies_of};
use super::observed::Observed;
use super::serving::ServingState;
use super::slot::{ActivationReaders, SlotState, readers};
use super::unit::UnitState;
use super::unit_layout::trained_parts;
use super::{Keep, Mesh, MeshAxis, NetworkSplit, ParamUnit, RankPlace, Route, Slot};
use crate::model::Arithmetic;
use crate::timing::{BucketTimes, StepSpan, StepWork};
use crate::{Batch, Config, DrawKey, Error, GradScaler, Network, Result, models};
use allfold_collectives::{Buffer, Communicator, Rank, Work};
use allfold_kernels::nn::Float;
use allfold_sim::Picos;
use std::sync::Arc;

/// The parameters of a step besides its batch.
#[derive(Clone, Copy, Debug)]
pub struct StepInput {
    /// The learning rate.
    pub lr: f64,
    /// The loss scale, 1 without one.
    pub loss_scale: f64,
    /// How much this rank's loss counts, relative to an equal share: 1 where all ranks have equally many samples.
    pub weight: f64,
    /// The key of the step's random draws, before its first micro-batch.
    pub draw_key: DrawKey,
    /// The number of steps, with this one, until all ranks synchronise.
    pub steps_left: u64,
}

impl Default for StepInput {
    /// The first and only step, with a learning rate of 0.
    fn default() -> StepInput {
        StepInput { lr: 0.0, loss_scale: 1.0, weight: 1.0, draw_key: DrawKey::default(), steps_left: 1 }
    }
}

/// The outcome of a step on a rank.
#[derive(Clone, Debug)]
pub struct StepResult {
    /// The mean loss of the samples at this rank's position on the data axis.
    pub loss: f64,
    /// Whether all ranks skipped the step because of a gradient that is not finite.
    pub skipped: bool,
    /// The first layer with an output that is not finite; `None` if the loss is finite.
    pub not_finite: Option<String>,
    /// The norm of all gradients before they were clipped; `None` without clipping.
    pub norm: Option<f64>,
    /// The time of forward phases.
    pub forward: Picos,
    /// The time spent waiting for other ranks.
    pub exposed: Picos,
    /// The time of the optimiser's update.
    pub optimiser: Picos,
}

/// A rank that computes on the CPU: its units, its micro-batches in flight and its communicators.
pub(crate) struct Worker<'a, F: Float> {
    pub(super) groups: MeshGroups<'a>,
    pub(super) config: &'a Config,
    pub(super) network: Network<F>,
    /// How the rank's network is a part of the whole network.
    pub(super) split: NetworkSplit,
    pub(super) place: RankPlace,
    pub(super) units: Vec<UnitState<F>>,
    /// For each layer: whether its parameters already have a gradient in this step.
    pub(super) begun: Vec<bool>,
    /// All buffers, such as running statistics. Only those of this rank's layers are kept up to date.
    pub(crate) buffers: Vec<F>,
    pub(super) slots: Vec<SlotState<F>>,
    pub(super) readers: ActivationReaders,
    pub(super) on: Arithmetic<F>,
    /// Buffers of whole units that are not in use.
    free_buffers: Vec<Buffer<F>>,
    /// Messages that were sent and may not have arrived yet, and the elements of all messages that are under way.
    pub(super) sent: Vec<Work<Buffer<F>>>,
    pub(super) away: usize,
    pub(super) serving: ServingState<F>,
    /// The gradients' buckets, where the strategy uses them.
    pub(super) bucketing: Option<BucketState<F>>,
    /// For each unit that several stages hold, on those stages: the communicator of the stages.
    pub(super) copies: Vec<Option<Communicator>>,
    /// For each unit, the first stage that holds it.
    pub(super) holders: Vec<Rank>,
    pub(crate) batch: Batch<F>,
    pub(super) input: StepInput,
    pub(super) scaler: Option<GradScaler>,
    pub(super) loss: f64,
    pub(super) skipped: bool,
    pub(super) not_finite: Option<String>,
    pub(super) norm: Option<f64>,
    /// The exchanges of gradients in the last step.
    pub(crate) log: Vec<BucketTimes>,
    /// Time of forward phases in this step, and time spent waiting.
    pub(super) forward_time: Picos,
    pub(super) waited: Picos,
    pub(super) update_time: Picos,
    /// When the current phase started, or when its last exchange ended.
    pub(super) since: Picos,
    pub(crate) observed: Observed,
}

/// The number of free buffers that a rank keeps: for a unit that is gathered ahead, a unit in use and a unit that is reduced.
const FREE_BUFFERS: usize = 3;

impl<'a, F: Float> Worker<'a, F> {
    /// A rank of `mesh` that holds `specs` of its network, without parameters yet. Every rank of `world` must call it.
    ///
    /// # Errors
    /// Communicators that cannot be made, or an optimiser that is unknown.
    pub fn new(
        config: &'a Config,
        (network, split): (Network<F>, NetworkSplit),
        specs: Vec<ParamUnit>,
        world: &'a Communicator,
        (mesh, channels): (Mesh, usize),
    ) -> Result<Worker<'a, F>> {
        let groups = MeshGroups::new(world, mesh, channels)?;
        let place = RankPlace::new((mesh, world.rank().index()), Arc::new(network.outline()), specs);
        let tensor = place.position(MeshAxis::Tensor).index;
        let trained = trained_parts(&network, &place.outline, split.tensor.as_ref(), tensor);
        let make = |(at, unit): (usize, &ParamUnit)| {
            let values = place.outline.values_in(&unit.layers);
            UnitState::new(unit.keep, values, place.part(at), &trained, (config, network.params()))
        };
        let units = place.units.iter().enumerate().map(make).collect::<Result<Vec<_>>>()?;
        let mut on = Arithmetic::new();
        if let Some(narrow) = models::narrow(config.precision.amp) {
            on.amp = crate::amp::Autocast::new(narrow, &network);
        }
        let mut worker = Worker {
            begun: vec![false; place.outline.layers()],
            readers: readers(&network, &place.outline, &place.units),
            buffers: vec![F::ZERO; network.buffer_count()],
            slots: Vec::new(),
            on,
            free_buffers: Vec::new(),
            sent: Vec::new(),
            away: 0,
            serving: ServingState::default(),
            bucketing: None,
            copies: Vec::new(),
            holders: Vec::new(),
            batch: Batch::default(),
            input: StepInput::default(),
            scaler: None,
            loss: 0.0,
            skipped: false,
            not_finite: None,
            norm: None,
            log: Vec::new(),
            forward_time: Picos::ZERO,
            waited: Picos::ZERO,
            update_time: Picos::ZERO,
            since: Picos::ZERO,
            observed: Observed::default(),
            groups,
            config,
            network,
            split,
            place,
            units,
        };
        match worker.split_copies() {
            Ok(()) => Ok(worker),
            Err(error) => Err(worker.failed(error)),
        }
    }

    /// Finds out which stages hold each unit, and makes communicators of those that hold the same.
    fn split_copies(&mut self) -> Result<()> {
        let Some(pipeline) = self.groups.along(MeshAxis::Pipeline) else { return Ok(()) };
        (self.holders, self.copies) = copies_of(pipeline, &self.place.units)?.into_iter().unzip();
        Ok(())
    }

    /// Whether this rank's copy of a unit is the one that counts in norms over all parameters.
    pub(super) fn counts(&self, unit: usize) -> bool {
        let copy = self.copies.get(unit).and_then(Option::as_ref);
        self.units[unit].keep != Keep::Nothing && copy.is_none_or(|copy| copy.rank() == Rank(0))
    }

    /// Whether this rank's parameters and state of a unit count in sums over all ranks: each counts on one rank alone.
    pub(super) fn counts_here(&self, unit: usize) -> bool {
        self.counts(unit) && self.place.is_first(unit)
    }

    /// Whether this rank has all parameters whole, with their gradients and optimiser state, as every rank of the data axis has.
    pub(super) fn has_all(&self) -> bool {
        let parts = [MeshAxis::Pipeline, MeshAxis::Tensor, MeshAxis::Expert];
        let whole = parts.into_iter().all(|axis| self.groups.along(axis).is_none());
        whole && self.units.iter().all(|unit| unit.keep == Keep::Whole)
    }

    /// Begins a step over a batch.
    pub fn begin(&mut self, batch: Batch<F>, input: StepInput, scaler: Option<GradScaler>) {
        let place = self.place.position(MeshAxis::Context).index;
        self.batch = match &self.split.context {
            None => batch,
            Some(split) => Batch { x: split.cut(place, &batch.x), labels: split.cut(place, &batch.labels) },
        };
        (self.input, self.scaler) = (input, scaler);
        (self.loss, self.skipped, self.not_finite, self.norm) = (0.0, false, None, None);
        (self.forward_time, self.waited, self.update_time) = (Picos::ZERO, Picos::ZERO, Picos::ZERO);
        self.log.clear();
        self.observed.begin();
        self.begun.fill(false);
        self.units.iter_mut().for_each(|unit| unit.grad_part_begun = false);
    }

    /// Fails every group of this rank because of `error`, so that the other ranks end too. Returns `error`.
    pub fn failed(&self, error: Error) -> Error {
        let why = error.to_string();
        self.groups.abort(&why);
        self.copies.iter().flatten().for_each(|copies| copies.abort(&why));
        error
    }

    /// The outcome of the step.
    pub fn report(&mut self) -> StepResult {
        StepResult {
            loss: self.loss,
            skipped: self.skipped,
            not_finite: self.not_finite.take(),
            norm: self.norm,
            forward: self.forward_time,
            exposed: self.waited,
            optimiser: self.update_time,
        }
    }

    /// Bytes of the free buffers of whole units.
    pub(super) fn spare_bytes(&self) -> u64 {
        (self.free_buffers.iter().map(|buffer| buffer.len()).sum::<usize>() * size_of::<F>()) as u64
    }

    /// Bytes of activations, of the values that layers saved, and of gradients with respect to activations, with those of the pool
    /// and of messages.
    pub(super) fn activation_bytes(&self) -> [u64; 3] {
        let mut sum = [0, 0, self.on.pool.bytes() + (self.away * size_of::<F>()) as u64];
        for slot in &self.slots {
            sum.iter_mut().zip(slot.bytes()).for_each(|(sum, bytes)| *sum += bytes);
        }
        sum
    }

    /// Records that this rank did `work`, of micro-batch `micro` if any, from `start` until now.
    pub(super) fn did(&mut self, work: StepWork, micro: Option<usize>, start: Picos) {
        let end = self.groups.world.now();
        self.observed.add(StepSpan { work, micro, start, end });
    }

    /// Updates the peak by the memory that this rank holds now.
    pub(super) fn note_memory(&mut self) {
        if self.observed.wanted {
            let now = self.memory();
            if now.total() > self.observed.peak.total() {
                self.observed.peak = now;
            }
        }
    }

    pub(super) fn slot(&mut self, slot: Slot) -> &mut SlotState<F> {
        while self.slots.len() <= slot.0 {
            self.slots.push(SlotState::new(self.place.outline.layers()));
        }
        &mut self.slots[slot.0]
    }

    /// A buffer for a whole unit: a free one of this size, or a new one.
    pub(super) fn whole_unit_buffer(&mut self, elements: usize) -> Buffer<F> {
        match self.free_buffers.iter().position(|buffer| buffer.len() == elements) {
            Some(at) => self.free_buffers.swap_remove(at),
            None => self.groups.data().buffer(elements),
        }
    }

    pub(super) fn recycle(&mut self, buffer: Buffer<F>) {
        if self.free_buffers.len() == FREE_BUFFERS {
            self.free_buffers.remove(0);
        }
        self.free_buffers.push(buffer);
    }

    /// Waits for `work` and counts the time.
    pub(super) fn wait(&mut self, work: Work<Buffer<F>>) -> Result<(Buffer<F>, Picos)> {
        let before = self.groups.world.now();
        let done = work.wait_timed()?;
        self.waited_since(before);
        Ok(done)
    }

    /// Waits for a message that is counted as under way, and returns its values.
    pub(super) fn arrived(&mut self, work: Work<Buffer<F>>) -> Result<Buffer<F>> {
        let (values, _) = self.wait(work)?;
        self.away -= values.len();
        Ok(values)
    }

    /// Waits for messages that are counted as under way, whose buffers return to the pool.
    pub(super) fn recycle_all(&mut self, messages: Vec<Work<Buffer<F>>>) -> Result<()> {
        for work in messages {
            let values = self.arrived(work)?;
            self.on.pool.push(values.into_vec());
        }
        Ok(())
    }

    /// Counts the time since `before` as spent waiting.
    pub(super) fn waited_since(&mut self, before: Picos) {
        self.waited += self.groups.world.now() - before;
        self.did(StepWork::Waiting, None, before);
    }

    /// The communicator of a route and the peer's rank on it.
    pub(super) fn route(&self, route: Route) -> Result<(&Communicator, Rank)> {
        let channel = self.groups.channel(route.channel);
        let channel =
            channel.ok_or_else(|| Error::Strategy(format!("there is no channel {}", route.channel)))?;
        Ok((channel, Rank(route.peer as u32)))
    }
}
