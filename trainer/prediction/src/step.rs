//! A step of a strategy on the clock: one rank of each stage, each on a thread.

use crate::clock::{ClockRank, Shared, StepRules};
use crate::stages::{Stages, is_consequence};
use crate::{ExchangeModel, StepCosts, StepPrediction};
use allfold_sim::Picos;
use allfold_trainer::engine::{Mesh, ParamUnit};
use allfold_trainer::strategies::Driver;
use allfold_trainer::timing::{BucketTimes, StepBreakdown, StepSpan, communication};
use allfold_trainer::{Error, Result};
use std::sync::Mutex;
use std::thread;

/// What happens on one rank of each stage in the last step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StageStep {
    pub time: StepBreakdown,
    pub buckets: Vec<BucketTimes>,
    pub spans: Vec<StepSpan>,
}

/// A stage of a pipeline begins a step when its own part of the previous one has ended, so that its steps are alike from the third on.
const STEPS: usize = 3;

/// Times a step. `drivers` makes the driver of each stage.
///
/// # Errors
/// What the strategy or the machine does not take.
pub(crate) fn step(
    (costs, rules, mesh): (&dyn StepCosts, StepRules, Mesh),
    drivers: &(dyn Fn(usize) -> Result<Box<dyn Driver>> + Sync),
    exchange: &mut dyn ExchangeModel,
) -> Result<StepPrediction> {
    let outline = costs.outline();
    let units = |stage| drivers(stage)?.units(&outline);
    let specs = (0..mesh.pipeline).map(units).collect::<Result<Vec<Vec<ParamUnit>>>>()?;
    let (stages, exchange) = (Stages::new(mesh.pipeline), Mutex::new(exchange));
    let with = Shared { costs, rules, mesh, specs: &specs, stages: &stages, exchange: &exchange };
    let results: Vec<Result<StageStep>> = match mesh.pipeline {
        1 => vec![stage_step(with, 0, drivers)],
        of => thread::scope(|threads| {
            let start = |stage| threads.spawn(move || stage_step(with, stage, drivers));
            let all: Vec<_> = (0..of).map(start).collect();
            let joined = |done: thread::ScopedJoinHandle<'_, Result<StageStep>>| {
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
    let slowest = done.iter().max_by_key(|stage| stage.time.total());
    let StageStep { time, buckets, .. } =
        slowest.cloned().ok_or_else(|| Error::Strategy("no rank".into()))?;
    let engines = allfold_base::lock(&exchange).engines();
    let samples = rules.batch as u64 * (mesh.data / mesh.context) as u64;
    let (ranks, parameters) = (mesh.ranks() as u32, costs.parameters());
    let stages = done.into_iter().map(|stage| stage.spans).collect();
    Ok(StepPrediction {
        ranks,
        samples,
        time,
        communication: communication(&buckets),
        buckets,
        parameters,
        stages,
        engines,
    })
}

fn stage_step(
    with: Shared,
    stage: usize,
    drivers: &(dyn Fn(usize) -> Result<Box<dyn Driver>> + Sync),
) -> Result<StageStep> {
    let ended = End(with.stages);
    let done = steps(with, stage, drivers);
    let failed = done.as_ref().err().map(ToString::to_string);
    std::mem::forget(ended);
    with.stages.end(failed);
    done
}

/// Ends the other stages if this one panics.
struct End<'a>(&'a Stages);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end(Some("a stage has panicked".into()));
    }
}

fn steps(
    with: Shared,
    stage: usize,
    drivers: &(dyn Fn(usize) -> Result<Box<dyn Driver>> + Sync),
) -> Result<StageStep> {
    let (mut driver, mut rank) = (drivers(stage)?, ClockRank::new(with, stage)?);
    driver.start(&mut rank)?;
    let mut start = Picos::ZERO;
    for _ in 0..if with.mesh.pipeline > 1 { STEPS } else { 1 } {
        rank.begin();
        start = rank.now;
        rank.now += with.costs.data(with.rules.batch);
        driver.step(&mut rank)?;
    }
    let (all, data) = (rank.now - start, with.costs.data(with.rules.batch));
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
    Ok(StageStep {
        time: StepBreakdown { data, forward, backward, exposed, optimiser },
        buckets: rank.log.into_iter().map(bucket).collect(),
        spans: rank.spans.into_iter().map(span).collect(),
    })
}
