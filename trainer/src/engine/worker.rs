//! The engine of the CPU.

use super::groups::Groups;
use super::observed::Observed;
use super::serving::ServingState;
use super::slot::{self, SlotState};
use super::unit::UnitState;
use super::{Keep, Mesh, MeshAxis, ParamUnit, Route, Slot};
use crate::model::Arithmetic;
use crate::timing::{BucketTimes, StepSpan, StepWork};
use crate::{
    Batch, Config, ContextSplit, DrawKey, Error, GradScaler, MemoryUse, Network, Outline, Result, TensorSplit,
};
use allfold_collectives::{Buffer, Communicator, Rank, Work};
use allfold_kernels::nn::Float;
use allfold_sim::Picos;
use std::ops::Range;
use std::sync::Arc;

/// The parameters of a step besides its batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepInput {
    /// The learning rate.
    pub lr: f64,
    /// The loss scale, 1 without one.
    pub loss_scale: f64,
    /// The key of the step's random draws, before its first micro-batch.
    pub draw_key: DrawKey,
    /// Steps, this one included, until all ranks meet.
    pub steps_left: u64,
}

/// The outcome of a step on a rank.
#[derive(Clone, Debug)]
pub(crate) struct StepResult {
    /// The mean loss of the samples of this rank's place on the data axis.
    pub loss: f64,
    /// Whether a gradient that is not finite kept all ranks from moving.
    pub skipped: bool,
    /// The first layer with an output that is not finite.
    pub not_finite: Option<String>,
    /// Time of forward phases.
    pub forward: Picos,
    /// Time spent waiting for other ranks.
    pub exposed: Picos,
    /// Time of the update.
    pub optimiser: Picos,
}

/// How ranks share a network's layers and positions.
#[derive(Clone, Debug, Default)]
pub(crate) struct NetworkSplit {
    /// How the ranks of the tensor axis share layers, where there are several.
    pub tensor: Option<TensorSplit>,
    /// How the ranks of the context axis share positions, where there are several.
    pub context: Option<ContextSplit>,
}

impl NetworkSplit {
    /// How the ranks of `mesh` share `network`, and the part of a rank.
    ///
    /// # Errors
    /// A network that they cannot share so.
    pub fn of<F: Float>(network: Network<F>, mesh: &Mesh, rank: usize) -> Result<(Network<F>, NetworkSplit)> {
        let [tensor, context] = [MeshAxis::Tensor, MeshAxis::Context].map(|axis| mesh.position(rank, axis));
        let mut split = NetworkSplit::default();
        let mut part = network;
        if tensor.size > 1 {
            let layers = TensorSplit::of(&part, tensor.size)?;
            part = layers.part(part, tensor.index)?;
            split.tensor = Some(layers);
        }
        if context.size > 1 {
            let positions = ContextSplit::of(&part, context.size)?;
            part = positions.part(part, context.index)?;
            split.context = Some(positions);
        }
        Ok((part, split))
    }
}

/// A rank that computes on the CPU: its units, its micro-batches in flight and its communicators.
pub(crate) struct Worker<'a, F: Float> {
    pub(super) groups: Groups<'a>,
    pub(super) config: &'a Config,
    pub(super) network: Network<F>,
    /// How it is a part of the whole network.
    pub(super) split: NetworkSplit,
    pub(super) outline: Arc<Outline>,
    pub(super) specs: Vec<ParamUnit>,
    pub(super) units: Vec<UnitState<F>>,
    /// For each layer: the unit of its parameters.
    pub(super) unit_of: Vec<usize>,
    /// For each layer: whether this step's gradients of its parameters are begun.
    pub(super) begun: Vec<bool>,
    /// All buffers, such as running statistics. Only those of this rank's layers are kept up to date.
    pub(super) buffers: Vec<F>,
    pub(super) slots: Vec<SlotState<F>>,
    pub(super) readers: Vec<u32>,
    pub(super) on: Arithmetic<F>,
    /// Buffers of whole units that are not in use.
    spare: Vec<Buffer<F>>,
    /// Messages that were sent and may still be on their way.
    pub(super) sent: Vec<Work<Buffer<F>>>,
    pub(super) serving: ServingState<F>,
    /// For each unit that several stages hold, on those stages: their communicator.
    pub(super) copies: Vec<Option<Communicator>>,
    /// For each unit, the first stage that holds it.
    pub(super) holders: Vec<u32>,
    pub(super) batch: Batch<F>,
    pub(super) input: StepInput,
    pub(super) scaler: Option<GradScaler>,
    pub(super) loss: f64,
    pub(super) skipped: bool,
    pub(super) not_finite: Option<String>,
    pub(super) log: Vec<BucketTimes>,
    /// Time of forward phases, and time spent waiting, in this step.
    pub(super) forward_time: Picos,
    pub(super) waited: Picos,
    pub(super) update_time: Picos,
    /// The start of the phase under way, or the end of its last exchange.
    pub(super) since: Picos,
    pub(super) observed: Observed,
}

/// Spare buffers that a rank keeps: one that is gathered ahead, one in use, one that is reduced.
const SPARE: usize = 3;

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
        let groups = Groups::new(world, mesh, channels)?;
        let outline = Arc::new(network.outline());
        let [data, shard, tensor] =
            [MeshAxis::Data, MeshAxis::Shard, MeshAxis::Tensor].map(|axis| groups.position(axis));
        let trained = trained_parts(&network, &outline, split.tensor.as_ref(), tensor.index);
        let make = |unit: &ParamUnit| {
            let values = outline.values_in(&unit.layers);
            let role = groups.serving_role();
            let place = match (unit.keep, role.servers) {
                (Keep::First, _) => (data.index, data.size),
                (_, 0) => (shard.index, shard.size),
                (_, servers) => (role.server.unwrap_or_default(), servers),
            };
            UnitState::new(unit.keep, values, place, &trained, (config, network.params()))
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
            serving: ServingState::default(),
            copies: Vec::new(),
            holders: Vec::new(),
            batch: Batch::default(),
            input: StepInput { lr: 0.0, loss_scale: 1.0, draw_key: DrawKey::default(), steps_left: 0 },
            scaler: None,
            loss: 0.0,
            skipped: false,
            not_finite: None,
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
            outline,
            specs,
            units,
        };
        match worker.split_copies() {
            Ok(()) => Ok(worker),
            Err(error) => Err(worker.failed(error)),
        }
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

    /// Whether this rank's parameters and state of a unit count in sums over all ranks: each counts on one rank alone.
    pub(super) fn counts_here(&self, unit: usize) -> bool {
        let axis = match self.units[unit].keep {
            Keep::Whole | Keep::First => MeshAxis::Data,
            _ => MeshAxis::Replica,
        };
        self.counts(unit) && self.groups.position(axis).index == 0
    }

    /// Begins a step over a batch.
    pub fn begin(&mut self, batch: Batch<F>, input: StepInput, scaler: Option<GradScaler>) {
        let place = self.groups.position(MeshAxis::Context).index;
        self.batch = match &self.split.context {
            None => batch,
            Some(split) => Batch { x: split.cut(place, &batch.x), labels: split.cut(place, &batch.labels) },
        };
        (self.input, self.scaler) = (input, scaler);
        (self.loss, self.skipped, self.not_finite) = (0.0, false, None);
        (self.forward_time, self.waited, self.update_time) = (Picos::ZERO, Picos::ZERO, Picos::ZERO);
        self.log.clear();
        self.observed.begin();
        self.begun.fill(false);
        self.units.iter_mut().for_each(|unit| unit.grad_part_begun = false);
    }

    /// Gives the batch back.
    pub fn take_batch(&mut self) -> Batch<F> {
        std::mem::take(&mut self.batch)
    }

    /// Tells every rank of every group that this one goes on no more, because of `error`.
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

    /// Records from now on, or no more, what [`Worker::spans`] and [`Worker::peak`] tell.
    pub fn observe(&mut self, wanted: bool) {
        self.observed.wanted = wanted;
    }

    /// The work and the waiting of the last step, in order.
    pub fn spans(&self) -> &[StepSpan] {
        &self.observed.spans
    }

    /// The memory of this rank when it held the most in the last step.
    pub fn peak(&self) -> MemoryUse {
        self.observed.peak
    }

    /// This rank did `work`, of micro-batch `micro` if of one, from `start` until now.
    pub(super) fn did(&mut self, work: StepWork, micro: Option<usize>, start: Picos) {
        let end = self.groups.world.now();
        self.observed.add(StepSpan { work, micro, start, end });
    }

    /// Notes the memory that this rank holds now, if it is more than before.
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

    pub(super) fn recycle(&mut self, buffer: Buffer<F>) {
        if self.spare.len() == SPARE {
            self.spare.remove(0);
        }
        self.spare.push(buffer);
    }

    /// Waits for `work` and counts the time.
    pub(super) fn wait(&mut self, work: Work<Buffer<F>>) -> Result<(Buffer<F>, Picos)> {
        let before = self.groups.world.now();
        let done = work.wait_timed()?;
        self.waited_since(before);
        Ok(done)
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

/// The trained elements, each range with whether this rank's copy counts in sums over all ranks: of parameters that every rank of
/// the tensor axis has, the first rank's copy does.
fn trained_parts<F: Float>(
    network: &Network<F>,
    outline: &Outline,
    split: Option<&TensorSplit>,
    tensor: usize,
) -> Vec<(Range<usize>, bool)> {
    let Some(split) = split else {
        return outline.trained().iter().map(|range| (range.clone(), true)).collect();
    };
    let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
    for (param, place) in network.params().iter().enumerate() {
        let counts = tensor == 0 || !split.is_whole(param);
        let is_trained = outline.trained().iter().any(|range| range.contains(&place.range.start));
        match parts.last_mut() {
            _ if !is_trained => {}
            Some((last, same)) if last.end == place.range.start && *same == counts => {
                last.end = place.range.end
            }
            _ => parts.push((place.range.clone(), counts)),
        }
    }
    parts
}

/// The layers that a rank runs: the neighbours among its units together.
fn held_layers(specs: &[ParamUnit], outline: &Outline) -> Vec<Range<usize>> {
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
