//! One rank of a strategy on a clock: what the engine of the CPU does, without arithmetic and messages, and with the sizes of its
//! buffers alone.
//!
//! ```text
//! strategy (driver, sharing)            the trainer's own
//!    '-- RankEngine                     ClockRank: phases, units and exchanges take time, and nothing else
//!          |-- StepCosts                how long a phase takes
//!          '-- Exchanges                how long exchanges take:
//!                |-- ExchangeModel, SyncPoints by a model, once all ranks have entered; when other stepped ranks enter, send, receive
//!                '-- WorldLinks                as messages without contents on virtual time
//! ```
//!
//! Ranks that do the same at the same time are represented by one rank, which alone is stepped: the first rank of each stage of a pipeline.
//! So a collective along any other axis begins when this rank enters it. Ranks with unlike devices or unequal shares of the samples are
//! represented by one rank of each kind, if ranks share only samples. Otherwise, and where the first rank of the data axis does what others
//! do not, every rank is stepped. The operations of a communicator follow each other, as on the communication thread of a real one.

mod bucketing;
mod buffers;
mod exchanges;
mod links;
mod memory;
mod queue;
mod rank;
mod rank_clock;
mod serving;
mod sync_points;
mod units;
mod update;

use crate::StepCosts;
use allfold_collectives::DType;
use allfold_sim::Picos;
use allfold_trainer::MemoryUse;
use allfold_trainer::engine::{
    Keep, Mesh, MeshAxis, ParamUnit, RankPlace, UnitExchange, UnitLayout, readers,
};
use bucketing::ClockBuckets;
pub(crate) use exchanges::Exchanges;
use exchanges::{ClockExchanges, Pending};
pub(crate) use links::WorldLinks;
use memory::{ClockMemory, RankTensors};
pub(crate) use queue::Queue;
use rank_clock::RankClock;
use std::collections::BTreeSet;
use std::sync::Arc;
pub(crate) use sync_points::{SyncPoints, is_consequence};
use units::UnitSizes;

/// The properties of a configuration that the clock needs in addition to its strategy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepRules {
    /// Whether ranks may have unequally many samples.
    pub uneven: bool,
    /// Whether buckets are views of the gradients where possible.
    pub views: bool,
    /// Whether ranks agree on a loss scale in each step.
    pub scaler: bool,
    /// Whether the norm of all gradients is bounded.
    pub clip: bool,
    /// Whether the optimiser needs the norms of whole parameters.
    pub norms: bool,
    /// Whether ranks share layers or experts, so that none has all parameters.
    pub parts: bool,
    /// With servers: the steps that a worker may be ahead of the slowest.
    pub staleness: u64,
    /// Steps after which a rank does the same again: with the hook `local_sgd` those from one average of the weights to the next.
    pub period: u64,
}

/// What a stepped rank computes, and what all stepped ranks have in common.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub costs: &'a dyn StepCosts,
    /// The number of samples of a rank like this one.
    pub batch: usize,
    pub rules: StepRules,
    pub mesh: Mesh,
    /// The ranks that are stepped, by their numbers in the mesh.
    pub ranks: &'a [usize],
    /// The units of each stepped rank.
    pub specs: &'a [Vec<ParamUnit>],
}

impl Shared<'_> {
    /// The type in which gradients and activations are sent.
    pub fn dtype(&self) -> DType {
        match self.costs.element() {
            8 => DType::F64,
            2 => DType::F16,
            _ => DType::F32,
        }
    }
}

/// A unit on this rank.
struct ClockUnit {
    keep: Keep,
    layout: UnitLayout,
    /// The gather of the parameters, and the exchange of the gradient, that are in progress.
    gathering: Option<Pending>,
    reducing: Option<Pending>,
    /// The sum of the rank's part of the gradient over the ranks with the same part, while it is in progress.
    summing: Option<Pending>,
    /// The exchange of the gradient that was started and not finished.
    unfinished: Option<UnitExchange>,
}

/// A micro-batch in flight.
#[derive(Clone, Default)]
struct ClockSlot {
    /// The number of samples.
    n: usize,
    /// The number of the micro-batch in its step, from 1.
    micro: usize,
    /// The layers of which the gradient of the output was gathered.
    gathered: BTreeSet<usize>,
}

/// A rank on a clock.
pub(crate) struct ClockRank<'a> {
    with: Shared<'a>,
    place: Arc<RankPlace>,
    /// The number of this rank among the stepped ranks.
    number: usize,
    /// The number of samples of this rank's batch: the samples of all ranks, if this rank leads them.
    pub samples: usize,
    units: Vec<ClockUnit>,
    slots: Vec<ClockSlot>,
    bucketing: Option<ClockBuckets>,
    /// The messages that were sent and may not have arrived yet.
    sent: Vec<Pending>,
    exchanges: ClockExchanges<'a>,
    /// The sizes of this rank's buffers, if those of the network's tensors are known.
    memory: Option<ClockMemory<'a>>,
    /// The number of the step, and that of the steps, with this one, until all ranks synchronise.
    step: u64,
    steps_left: u64,
    pub clock: RankClock,
}

impl<'a> ClockRank<'a> {
    /// Stepped rank `number`.
    pub fn new(with: Shared<'a>, number: usize, exchanges: Exchanges<'a>) -> ClockRank<'a> {
        let (trained, mesh) = (with.costs.trained(), with.mesh);
        let units = with.specs[number].clone();
        let place = Arc::new(RankPlace::new((mesh, with.ranks[number]), with.costs.outline(), units));
        let make = |(number, unit): (usize, &ParamUnit)| {
            let values = place.outline.values_in(&unit.layers);
            let layout = UnitLayout::new(unit.keep, values, place.part(number), &trained);
            let (gathering, reducing, summing, unfinished) = (None, None, None, None);
            ClockUnit { keep: unit.keep, layout, gathering, reducing, summing, unfinished }
        };
        let units: Vec<ClockUnit> = place.units.iter().enumerate().map(make).collect();
        let data = place.position(MeshAxis::Data);
        let samples = match place.role().server {
            Some(_) => 0,
            None if place.is_led && data.index == 0 => with.batch * data.size,
            None => with.batch,
        };
        let now = match &exchanges {
            Exchanges::Links(links) => links.now(),
            Exchanges::Modeled { .. } => Picos::ZERO,
        };
        let exchanges = ClockExchanges::new(with, place.clone(), exchanges);
        ClockRank {
            memory: memory(&with, &place, &units),
            place,
            number,
            samples,
            units,
            slots: Vec::new(),
            bucketing: None,
            sent: Vec::new(),
            clock: RankClock { now, ..RankClock::default() },
            exchanges,
            step: 0,
            steps_left: 1,
            with,
        }
    }

    /// Begins a step, with which `steps_left` are left until all ranks synchronise.
    pub fn begin(&mut self, step: u64, steps_left: u64) {
        (self.step, self.steps_left) = (step, steps_left);
        self.clock = RankClock { now: self.clock.now, ..RankClock::default() };
        self.memory.iter_mut().for_each(ClockMemory::begin);
        if let Exchanges::Links(links) = &self.exchanges.by {
            links.note_step(step);
        }
    }

    /// The most that the rank has held in this step, if the sizes of the network's tensors are known.
    pub fn peak(&self) -> Option<MemoryUse> {
        self.memory.as_ref().map(|memory| memory.peak)
    }
}

/// The memory of a rank with these units before its first step, if the sizes of the network's tensors are known.
fn memory<'a>(with: &Shared<'a>, place: &RankPlace, units: &[ClockUnit]) -> Option<ClockMemory<'a>> {
    let costs = with.costs;
    let network = costs.tensors()?;
    let tensors = RankTensors {
        network,
        readers: readers(network, &place.outline, &place.units),
        unit_of: place.units_of_layers.clone(),
        outline: place.outline.clone(),
        has_stages: with.mesh.pipeline > 1,
        elements: (costs.element(), costs.activation_element()),
    };
    let bytes = |elements: usize| (elements * costs.element()) as u64;
    let updated: usize = units.iter().map(|unit| unit.layout.trained_len()).sum();
    let (buffers, optimiser) = (bytes(costs.buffers()), bytes(updated * costs.optimiser_state()));
    let sizes = UnitSizes::new(units.iter().map(|unit| (unit.keep, &unit.layout)));
    Some(ClockMemory::new(tensors, sizes, MemoryUse { buffers, optimiser, ..MemoryUse::default() }))
}
