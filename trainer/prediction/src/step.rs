//! A step of a strategy on the clock: each stepped rank is on a thread.

use crate::clock::{ClockRank, Exchanges, Shared, StepRules, SyncPoints, is_consequence};
use crate::{ExchangeModel, StepCosts, StepPrediction};
use allfold_sim::Picos;
use allfold_trainer::engine::{Keep, Mesh};
use allfold_trainer::strategies::Driver;
use allfold_trainer::timing::{BucketTimes, StepBreakdown, StepSpan, communication};
use allfold_trainer::{Error, MemoryUse, Result};
use std::sync::Mutex;
use std::thread;

/// What happens on a stepped rank in the last step; its time is the mean over steps that are not alike.
#[derive(Clone, Debug)]
pub struct SteppedRank {
    /// When the last step began. All other times are counted from here.
    pub start: Picos,
    /// The time by parts of the step.
    pub time: StepBreakdown,
    /// The times of each bucket, in the order of sending.
    pub buckets: Vec<BucketTimes>,
    /// The rank's work and waiting in order.
    pub spans: Vec<StepSpan>,
    /// The most that the rank held in any of these steps, if the sizes of the network's tensors are known.
    pub peak: Option<MemoryUse>,
}

/// A rank begins a step when its own part of the previous step has ended, so that with several stepped ranks, steps are alike from
/// the third on. The first steps also allocate the buffers that later steps find in their pools.
const STEPS: u64 = 3;

/// Steps of workers that may be ahead of each other are not alike: this many are averaged, after the steps in which no worker waits
/// yet.
const AHEAD: u64 = 10;

/// Makes the driver of a rank.
pub(crate) type Drivers<'a> = &'a (dyn Fn(usize) -> Result<Box<dyn Driver>> + Sync);

/// Ranks that compute equally long: on devices of one kind, over equally many samples.
#[derive(Clone, Copy)]
pub(crate) struct RankClass<'a> {
    pub costs: &'a dyn StepCosts,
    /// The number of samples of a rank.
    pub batch: usize,
}

/// Times a step of ranks that all compute equally long.
///
/// # Errors
/// What the strategy or the machine does not take.
pub(crate) fn step(
    (class, rules, mesh): (RankClass, StepRules, Mesh),
    drivers: Drivers,
    exchange: &mut dyn ExchangeModel,
) -> Result<StepPrediction> {
    unlike_step((&|_| class, rules, mesh), drivers, exchange)
}

/// The stepped ranks, each for all ranks that do the same at the same time: for each kind of position on the data axis one rank of
/// each stage, or all ranks that share the stage's layers if these ranks are unlike. All ranks are stepped if the first rank leads
/// the others, or if kinds of positions are mixed with groups of neighbours on the data axis.
fn stepped<'a>(is_led: bool, mesh: &Mesh, class_of: &dyn Fn(usize) -> RankClass<'a>) -> Vec<usize> {
    let at =
        |stage: usize, data: usize, tensor: usize| mesh.first_of_stage(stage) + data * mesh.tensor + tensor;
    let class = |rank: usize| {
        let RankClass { costs, batch } = class_of(rank);
        (std::ptr::from_ref(costs).cast::<()>(), batch)
    };
    let stage =
        |stage: usize, data: usize| (0..mesh.tensor).map(move |tensor| class(at(stage, data, tensor)));
    let alike = |one: usize, other: usize| (0..mesh.pipeline).all(|at| stage(at, one).eq(stage(at, other)));
    let mut kinds: Vec<usize> = Vec::new();
    for data in 0..mesh.data {
        if !kinds.iter().any(|kind| alike(*kind, data)) {
            kinds.push(data);
        }
    }
    let has_neighbours = mesh.shard != mesh.data || mesh.context > 1 || mesh.expert > 1;
    if is_led || kinds.len() > 1 && has_neighbours {
        return (0..mesh.ranks()).collect();
    }
    let one_shares = kinds.iter().all(|kind| {
        (0..mesh.pipeline).all(|at| stage(at, *kind).all(|own| Some(own) == stage(at, *kind).next()))
    });
    let sharers = if one_shares { 1 } else { mesh.tensor };
    let of_stage = |stage: usize| {
        let kinds = kinds.iter();
        kinds.flat_map(move |data| (0..sharers).map(move |tensor| at(stage, *data, tensor)))
    };
    (0..mesh.pipeline).flat_map(of_stage).collect()
}

/// Times a step of ranks whose classes determine how long each computes.
///
/// # Errors
/// What the strategy or the machine does not take.
pub(crate) fn unlike_step<'a>(
    (class_of, rules, mesh): (&(dyn Fn(usize) -> RankClass<'a> + Sync), StepRules, Mesh),
    drivers: Drivers,
    exchange: &mut dyn ExchangeModel,
) -> Result<StepPrediction> {
    let outline = class_of(0).costs.outline();
    let is_led = drivers(0)?.units(&outline)?.iter().any(|unit| unit.keep == Keep::First);
    let ranks = stepped(is_led, &mesh, class_of);
    step_of(&ranks, (class_of, rules, mesh), drivers, exchange)
}

/// Times a step in which these ranks are stepped, each for all ranks that do the same at the same time.
///
/// # Errors
/// What the strategy or the machine does not take.
pub(crate) fn step_of<'a>(
    ranks: &[usize],
    (class_of, rules, mesh): (&(dyn Fn(usize) -> RankClass<'a> + Sync), StepRules, Mesh),
    drivers: Drivers,
    exchange: &mut dyn ExchangeModel,
) -> Result<StepPrediction> {
    let outline = class_of(0).costs.outline();
    let units = |rank| drivers(rank)?.units(&outline);
    let specs = ranks.iter().map(|rank| units(*rank)).collect::<Result<Vec<_>>>()?;
    let (sync_points, exchange) = (SyncPoints::new(ranks.len()), Mutex::new(exchange));
    let with = |number: usize| {
        let RankClass { costs, batch } = class_of(ranks[number]);
        Shared { costs, batch, rules, mesh, ranks, specs: &specs }
    };
    let results: Vec<Result<SteppedRank>> = match ranks.len() {
        1 => vec![rank_step(with(0), 0, drivers, (&sync_points, &exchange))],
        of => thread::scope(|threads| {
            let start = |number| {
                let (with, by) = (with(number), (&sync_points, &exchange));
                threads.spawn(move || rank_step(with, number, drivers, by))
            };
            let all: Vec<_> = (0..of).map(start).collect();
            let joined = |done: thread::ScopedJoinHandle<'_, Result<SteppedRank>>| {
                done.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            all.into_iter().map(joined).collect()
        }),
    };
    if let Some(Err(error)) =
        results.iter().find(|result| result.as_ref().is_err_and(|error| !is_consequence(error)))
    {
        return Err(error.clone());
    }
    let done = results.into_iter().collect::<Result<Vec<_>>>()?;
    let engines = allfold_base::lock(&exchange).engines();
    prediction(done, (class_of, mesh), engines)
}

/// The prediction of a step that these ranks have done.
pub(crate) fn prediction<'a>(
    done: Vec<SteppedRank>,
    (class_of, mesh): (&dyn Fn(usize) -> RankClass<'a>, Mesh),
    engines: Vec<String>,
) -> Result<StepPrediction> {
    let slowest = done.iter().max_by_key(|rank| rank.time.total());
    let SteppedRank { time, buckets, .. } =
        slowest.cloned().ok_or_else(|| Error::Strategy("no rank".into()))?;
    let places = (0..mesh.data / mesh.context).map(|place| mesh.servers + place * mesh.context * mesh.tensor);
    let samples = places.map(|rank| class_of(rank).batch as u64).sum();
    let (ranks, parameters) = (mesh.ranks() as u32, class_of(0).costs.parameters());
    let peaks = done.iter().filter_map(|rank| rank.peak).collect();
    let spans = done.into_iter().map(|rank| rank.spans).collect();
    let communication = communication(&buckets);
    Ok(StepPrediction { ranks, samples, time, communication, buckets, parameters, peaks, spans, engines })
}

fn rank_step(
    with: Shared,
    number: usize,
    drivers: Drivers,
    (sync_points, model): (&SyncPoints, &Mutex<&mut dyn ExchangeModel>),
) -> Result<SteppedRank> {
    let ended = End(sync_points);
    let done = steps(with, number, drivers, Exchanges::Modeled { sync_points, model });
    let failed = done.as_ref().err().map(ToString::to_string);
    std::mem::forget(ended);
    sync_points.end(failed);
    done
}

/// Ends the other ranks if this one panics.
struct End<'a>(&'a SyncPoints);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end(Some("a rank has panicked".into()));
    }
}

/// A step of stepped rank `number`.
pub(crate) fn steps<'a>(
    with: Shared<'a>,
    number: usize,
    drivers: Drivers,
    exchanges: Exchanges<'a>,
) -> Result<SteppedRank> {
    let (mut driver, mut rank) = (drivers(with.ranks[number])?, ClockRank::new(with, number, exchanges));
    let data = with.costs.data(rank.samples);
    driver.start(&mut rank)?;
    let period = with.rules.period;
    let (warmup, count) = match (with.ranks.len(), with.rules.staleness) {
        (1, _) if with.costs.tensors().is_none() => (0, period),
        (_, 0) => ((STEPS - 1) * period, STEPS * period),
        (_, staleness) => (staleness + 1, staleness + 1 + AHEAD),
    };
    let (mut start, mut all, mut peak) = (Picos::ZERO, StepBreakdown::default(), None);
    for step in 0..count {
        rank.begin(step, count - step);
        start = rank.clock.now;
        rank.clock.now += data;
        driver.step(&mut rank)?;
        if step >= warmup {
            all += rank.clock.breakdown(start, data);
            peak = peak.into_iter().chain(rank.peak()).max_by_key(MemoryUse::total);
        }
    }
    let mean = |sum: Picos| Picos(sum.0 / (count - warmup));
    let StepBreakdown { data, forward, backward, exposed, optimiser } = all;
    let [data, forward, backward, exposed, optimiser] =
        [data, forward, backward, exposed, optimiser].map(mean);
    let since = |at: Picos| Picos(at.0.saturating_sub(start.0));
    let bucket = |times: BucketTimes| BucketTimes {
        ready: since(times.ready),
        sent: since(times.sent),
        done: since(times.done),
        ..times
    };
    let span = |span: StepSpan| StepSpan { start: since(span.start), end: since(span.end), ..span };
    Ok(SteppedRank {
        start,
        time: StepBreakdown { data, forward, backward, exposed, optimiser },
        buckets: rank.clock.log.into_iter().map(bucket).collect(),
        spans: rank.clock.spans.into_iter().map(span).collect(),
        peak,
    })
}
