//! What came of a training run.

use crate::measure::{samples, statistics};
use allfold_collectives::Activity;
use allfold_report::records::{Breakdown, BucketLife};
use allfold_sim::Picos;
use allfold_trainer::timing::BucketTimes;
use allfold_trainer::{Memory, TrainResult};

/// What came of a run.
pub struct Trained {
    /// As rank 0 saw it.
    pub result: TrainResult,
    /// Every step, as each rank saw it.
    pub steps: Vec<Vec<Step>>,
    /// What ranks did, on virtual time.
    pub timeline: Vec<Activity>,
}

/// One step of one rank.
#[derive(Clone, Debug)]
pub struct Step {
    /// When it was done.
    pub end: Picos,
    /// Where its time went.
    pub time: allfold_trainer::timing::Breakdown,
    /// What the rank held then.
    pub memory: Memory,
    /// The life of its buckets, in the step of which it is kept.
    pub buckets: Vec<BucketTimes>,
}

impl Trained {
    /// Hash of every loss, bit for bit.
    pub fn losses_hash(&self) -> String {
        format!("{:016x}", samples::hash(&self.result.losses))
    }

    /// Hash of the final weights, bit for bit.
    pub fn weights_hash(&self) -> String {
        format!("{:016x}", self.result.weights_hash)
    }

    /// Mean time of a step of rank 0 in microseconds and its standard error, without the first, which also warms up.
    pub fn step_us(&self) -> (f64, f64) {
        let times: Vec<f64> = self.steps[0].iter().map(|step| step.time.total().as_micros()).collect();
        statistics::mean_and_error(if times.len() > 1 { &times[1..] } else { &times })
    }

    /// Training samples per second, over all ranks, by the median step of the slowest rank after the first third of the
    /// steps that this process made.
    pub fn steady_throughput(&self) -> f64 {
        let slowest = |step: usize| {
            let of = self.steps.iter().filter_map(|steps| steps.get(step));
            of.map(|step| step.time.total().as_secs()).fold(0.0, f64::max)
        };
        let times: Vec<f64> = (0..self.made()).map(slowest).collect();
        let samples = self.result.samples as f64 / self.made().max(1) as f64;
        let median = statistics::steady_median(&times);
        if median == 0.0 { 0.0 } else { samples / median }
    }

    /// Steps that this process made: of a run that was gone on with, the last ones.
    pub fn made(&self) -> usize {
        self.steps[0].len()
    }

    /// What rank 0 held after its last step, where it made one.
    pub fn memory(&self) -> Option<Memory> {
        self.steps[0].last().map(|step| step.memory)
    }

    /// The buckets of a step of rank 0, from the start of the step on. None of a step of which they are not kept.
    pub(super) fn buckets(&self, step: u64) -> Vec<BucketLife> {
        let first = self.result.losses.len() - self.made();
        let at = usize::try_from(step).ok().and_then(|step| step.checked_sub(first));
        let Some(step) = at.and_then(|at| self.steps[0].get(at)) else { return Vec::new() };
        let start = step.end.0.saturating_sub(step.time.total().0);
        let us = |time: Picos| Picos(time.0.saturating_sub(start)).as_micros();
        let life = |times: &BucketTimes| BucketLife {
            bucket: times.bucket,
            params: times.params,
            bytes: times.bytes,
            ready_us: us(times.ready),
            sent_us: us(times.sent),
            done_us: us(times.done),
        };
        step.buckets.iter().map(life).collect()
    }

    /// Where the time of a step of rank 0 goes, on average.
    pub fn breakdown(&self) -> Breakdown {
        let (total, steps) = (self.result.breakdown, self.made().max(1) as f64);
        let us = |time: Picos| time.as_micros() / steps;
        Breakdown {
            data_us: us(total.data),
            forward_us: us(total.forward),
            backward_us: us(total.backward),
            exposed_us: us(total.exposed),
            optimiser_us: us(total.optimiser),
        }
    }
}
