//! A rank of the engine that computes on the CPU.

use super::bucketing::BucketState;
use super::groups::MeshGroups;
use super::observed::Observed;
use super::serving::RankMessages;
use super::slot::{SlotState, Slots, readers};
use super::unit::{UnitState, Units};
use super::unit_layout::trained_parts;
use super::{Keep, Mesh, MeshAxis, NetworkSplit, ParamUnit, RankPlace, Route, Slot};
use crate::model::Arithmetic;
use crate::timing::{StepSpan, StepWork};
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
#[derive(Clone, Debug, Default)]
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

/// What a rank does in a step.
#[derive(Default)]
pub(crate) struct StepTask<F> {
    pub batch: Batch<F>,
    pub input: StepInput,
    pub scaler: Option<GradScaler>,
}

/// A rank that computes on the CPU: its units, its micro-batches in flight and its communicators.
pub(crate) struct Worker<'a, F: Float> {
    pub(super) groups: MeshGroups<'a>,
    pub(super) config: &'a Config,
    pub(super) network: Network<F>,
    /// How the rank's network is a part of the whole network.
    pub(super) split: NetworkSplit,
    pub(super) place: RankPlace,
    pub(super) units: Units<F>,
    /// For each layer: whether its parameters already have a gradient in this step.
    pub(super) begun: Vec<bool>,
    /// All buffers, such as running statistics. Only those of this rank's layers are kept up to date.
    pub(crate) buffers: Vec<F>,
    pub(super) slots: Slots<F>,
    pub(super) on: Arithmetic<F>,
    /// The messages that are under way, and the number of their elements.
    pub(super) messages: RankMessages<Work<Buffer<F>>>,
    pub(super) away: usize,
    /// The gradients' buckets, where the strategy uses them.
    pub(super) bucketing: Option<BucketState<F>>,
    pub(crate) task: StepTask<F>,
    /// The outcome of the step so far.
    pub(super) result: StepResult,
    pub(crate) observed: Observed,
}

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
        let groups = MeshGroups::new(world, mesh, channels, &specs)?;
        let place = RankPlace::new((mesh, world.rank().index()), Arc::new(network.outline()), specs);
        let tensor = place.position(MeshAxis::Tensor).index;
        let trained = trained_parts(&network, &place.outline, split.tensor.as_ref(), tensor);
        let make = |(at, unit): (usize, &ParamUnit)| {
            let values = place.outline.values_in(&unit.layers);
            UnitState::new(unit.keep, values, place.part(at), &trained, (config, network.params()))
        };
        let units = Units::new(place.units.iter().enumerate().map(make).collect::<Result<_>>()?);
        let mut on = Arithmetic::new();
        if let Some(narrow) = models::narrow(config.precision.amp) {
            on.amp = crate::amp::Autocast::new(narrow, &network);
        }
        Ok(Worker {
            begun: vec![false; place.outline.layers()],
            slots: Slots::new(readers(&network, &place.outline, &place.units)),
            buffers: vec![F::ZERO; network.buffer_count()],
            on,
            messages: RankMessages::default(),
            away: 0,
            bucketing: None,
            task: StepTask::default(),
            result: StepResult::default(),
            observed: Observed::default(),
            groups,
            config,
            network,
            split,
            place,
            units,
        })
    }

    /// Whether this rank's copy of a unit is the one that counts in norms over all parameters.
    pub(super) fn counts(&self, unit: usize) -> bool {
        self.units[unit].keep != Keep::Nothing
            && self.groups.copies(unit).is_none_or(|copy| copy.rank() == Rank(0))
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
        let batch = match &self.split.context {
            None => batch,
            Some(split) => Batch { x: split.cut(place, &batch.x), labels: split.cut(place, &batch.labels) },
        };
        self.task = StepTask { batch, input, scaler };
        self.result = StepResult::default();
        self.observed.begin();
        self.begun.fill(false);
        self.units.iter_mut().for_each(|unit| unit.grad_part_begun = false);
    }

    /// Fails every group of this rank because of `error`, so that the other ranks end too. Returns `error`.
    pub fn failed(&self, error: Error) -> Error {
        self.groups.abort(&error.to_string());
        error
    }

    /// The outcome of the step.
    pub fn report(&mut self) -> StepResult {
        StepResult { exposed: self.observed.waited, ..std::mem::take(&mut self.result) }
    }

    /// Bytes of the free buffers of whole units.
    pub(super) fn spare_bytes(&self) -> u64 {
        (self.units.free.elements(|buffer| buffer.len()) * size_of::<F>()) as u64
    }

    /// Bytes of activations, of the values that layers saved, and of gradients with respect to activations, with those of the pool
    /// and of messages.
    pub(super) fn activation_bytes(&self) -> [u64; 3] {
        let mut sum = [0, 0, self.on.pool.bytes() + (self.away * size_of::<F>()) as u64];
        for slot in &self.slots.all {
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
        self.slots.at(slot, self.place.outline.layers())
    }

    /// A buffer for a whole unit: a free one of this size, or a new one.
    pub(super) fn whole_unit_buffer(&mut self, elements: usize) -> Buffer<F> {
        let free = self.units.free.take(|buffer| buffer.len() == elements);
        free.unwrap_or_else(|| self.groups.data().buffer(elements))
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
        self.observed.waited += self.groups.world.now() - before;
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
