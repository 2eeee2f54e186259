//! What a change would bring, and what one measurement would tell.

use super::rank::{LEAST_ODDS, RankedLayout, RankedPlan, plan};
use super::task::PlanTask;
use crate::interval::{KnownStep, StepPredictor};
use crate::job::TrainingJob;
use crate::memory::memory;

/// The fastest layout after a change of the task.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIf {
    /// What changes.
    pub change: String,
    /// The fastest layout then.
    pub layout: RankedLayout,
    /// Tokens a second, then over now.
    pub speedup: f64,
}

/// One more node with the batch grown alike, and twice the network of the nodes. Where no layout is faster with the change, the fastest one
/// without it stays: GPUs may be left idle.
pub fn what_if(task: &PlanTask, now: &RankedPlan, predictor: &StepPredictor) -> Vec<WhatIf> {
    let Some(best) = now.layouts.first() else { return Vec::new() };
    let node = task.cluster.node;
    let more = task.gpus + node;
    // The same sequences for each GPU, so that the data-parallel axis can grow by any number.
    let each = task.global_batch / task.gpus;
    let shared = (u64::from(task.global_batch) * u64::from(more) / u64::from(task.gpus)) as u32;
    let global_batch = if each > 0 { each * more } else { shared };
    let grown = PlanTask { gpus: more, global_batch, ..task.clone() };
    let mut faster = task.clone();
    faster.cluster.nic *= 2.0;
    let changes = [(format!("{node} more GPUs"), grown), ("twice the network".to_string(), faster)];
    let bring = |(change, task): (String, PlanTask)| {
        let changed = plan(&task, predictor, 1).layouts.into_iter().next();
        let faster = changed.filter(|layout| layout.tokens_per_s() > best.tokens_per_s());
        let layout = faster.unwrap_or_else(|| best.clone());
        let speedup = layout.tokens_per_s() / best.tokens_per_s();
        WhatIf { change, layout, speedup }
    };
    changes.into_iter().map(bring).collect()
}

/// What one measured step would make of the interval of the layout that is ranked first.
#[derive(Clone, Debug, PartialEq)]
pub struct Narrowing {
    /// The job to measure.
    pub job: TrainingJob,
    /// Half of the 80 % interval of the first layout's step over the step, before and after.
    pub before: f64,
    /// See `before`.
    pub after: f64,
}

/// The measurement that narrows the interval of the first layout most for each GPU that it takes: the ranked layouts on as many
/// data-parallel ranks as an eighth of theirs, or as one.
pub fn narrowing(plan: &RankedPlan, predictor: &StepPredictor) -> Option<Narrowing> {
    let best = plan.layouts.first()?;
    let half = |[low, high]: [f64; 2], seconds: f64| (high - low) / 2.0 / seconds;
    let before = half(best.step.within80, best.step.seconds);
    let mut found: Option<(f64, Narrowing)> = None;
    for part in [8, u32::MAX] {
        for layout in &plan.layouts {
            let job = smaller(&layout.job, part);
            if memory(&job).fits(job.cluster.capacity) < LEAST_ODDS {
                continue;
            }
            let seconds = predictor.predict(&job).seconds;
            let then = predictor.knowing(&[KnownStep { job: &job, seconds }]).predict(&best.job);
            let after = half(then.within80, then.seconds);
            // Twice the GPUs must narrow by a tenth more.
            let worth = (before - after) * f64::from(job.layout.gpus).powf(-0.14);
            if found.as_ref().is_none_or(|(most, _)| worth > *most) {
                found = Some((worth, Narrowing { job, before, after }));
            }
        }
    }
    found.map(|(_, narrowing)| narrowing)
}

/// A job on a part of its data-parallel ranks, with as much work for each.
fn smaller(job: &TrainingJob, part: u32) -> TrainingJob {
    let mut job = job.clone();
    let data = job.layout.data();
    let kept = (1..=data.div_ceil(part)).rev().find(|kept| data.is_multiple_of(*kept)).unwrap_or(1);
    let layout = &mut job.layout;
    let experts = kept * layout.tensor * layout.context;
    if experts.is_multiple_of(layout.expert) {
        layout.gpus = layout.gpus / data * kept;
        layout.global_batch = layout.global_batch / data * kept;
    }
    job
}
