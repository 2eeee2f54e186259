//! A step of a strategy on the clock: each stepped rank is on a thread.

use crate::clock::{ClockRank, Shared, StepRules};
use crate::meetings::{Meetings, is_consequence};
use crate::{ExchangeModel, StepCosts, StepPrediction};
use allfold_sim::Picos;
use allfold_trainer::engine::{Keep, Mesh};
use allfold_trainer::strategies::Driver;
use allfold_trainer::timing::{BucketTimes, StepBreakdown, StepSpan, communication};
use allfold_trainer::{Error, Result};
use std::sync::Mutex;
use std::thread;

/// What happens on a stepped rank in the last step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RankStep {
    pub time: StepBreakdown,
    pub buckets: Vec<BucketTimes>,
    pub spans: Vec<StepSpan>,
}

/// A rank begins a step when its own part of the previous one has ended, so that where several are stepped, steps are alike from the
/// third on.
const STEPS: usize = 3;

/// Makes the driver of a rank.
pub(crate) type Drivers<'a> = &'a (dyn Fn(usize) -> Result<Box<dyn Driver>> + Sync);

/// Times a step.
///
/// # Errors
/// What the strategy or the machine does not take.
pub(crate) fn step(
    (costs, rules, mesh): (&dyn StepCosts, StepRules, Mesh),
    drivers: Drivers,
    exchange: &mut dyn ExchangeModel,
) -> Result<StepPrediction> {
    let outline = costs.outline();
    let units = |rank| drivers(rank)?.units(&outline);
    let is_led = units(0)?.iter().any(|unit| unit.keep == Keep::First);
    let firsts = (0..mesh.pipeline).map(|stage| mesh.first_of_stage(stage)).collect();
    let ranks: Vec<usize> = if is_led { (0..mesh.ranks()).collect() } else { firsts };
    let specs = ranks.iter().map(|rank| units(*rank)).collect::<Result<Vec<_>>>()?;
    let (meetings, exchange) = (Meetings::new(ranks.len()), Mutex::new(exchange));
    let with =
        Shared { costs, rules, mesh, ranks: &ranks, specs: &specs, meetings: &meetings, exchange: &exchange };
    let results: Vec<Result<RankStep>> = match ranks.len() {
        1 => vec![rank_step(with, 0, drivers)],
        of => thread::scope(|threads| {
            let start = |number| threads.spawn(move || rank_step(with, number, drivers));
            let all: Vec<_> = (0..of).map(start).collect();
            let joined = |done: thread::ScopedJoinHandle<'_, Result<RankStep>>| {
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
    let slowest = done.iter().max_by_key(|rank| rank.time.total());
    let RankStep { time, buckets, .. } = slowest.cloned().ok_or_else(|| Error::Strategy("no rank".into()))?;
    let engines = allfold_base::lock(&exchange).engines();
    let samples = rules.batch as u64 * (mesh.data / mesh.context) as u64;
    let (ranks, parameters) = (mesh.ranks() as u32, costs.parameters());
    let spans = done.into_iter().map(|rank| rank.spans).collect();
    Ok(StepPrediction {
        ranks,
        samples,
        time,
        communication: communication(&buckets),
        buckets,
        parameters,
        spans,
        engines,
    })
}

fn rank_step(with: Shared, number: usize, drivers: Drivers) -> Result<RankStep> {
    let ended = End(with.meetings);
    let done = steps(with, number, drivers);
    let failed = done.as_ref().err().map(ToString::to_string);
    std::mem::forget(ended);
    with.meetings.end(failed);
    done
}

/// Ends the other ranks if this one panics.
struct End<'a>(&'a Meetings);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end(Some("a rank has panicked".into()));
    }
}

fn steps(with: Shared, number: usize, drivers: Drivers) -> Result<RankStep> {
    let (mut driver, mut rank) = (drivers(with.ranks[number])?, ClockRank::new(with, number));
    let data = with.costs.data(rank.samples());
    driver.start(&mut rank)?;
    let mut start = Picos::ZERO;
    for _ in 0..if with.ranks.len() > 1 { STEPS } else { 1 } {
        rank.begin();
        start = rank.now;
        rank.now += data;
        driver.step(&mut rank)?;
    }
    let all = rank.now - start;
    let (forward, exposed, optimiser) = (rank.forward, rank.waited, rank.optimiser);
    let backward = Picos(all.0.saturating_sub((data + forward + exposed + optimiser).0));
    let since = |at: Picos| Picos(at.0.saturating_sub(start.0));
    let bucket = |times: BucketTimes| BucketTimes {
        ready: since(times.ready),
        sent: since(times.sent),
        done: since(times.done),
        ..times
    };
    let span = |span: StepSpan| StepSpan { start: since(span.start), end: since(span.end), ..span };
    Ok(RankStep {
        time: StepBreakdown { data, forward, backward, exposed, optimiser },
        buckets: rank.log.into_iter().map(bucket).collect(),
        spans: rank.spans.into_iter().map(span).collect(),
    })
}
