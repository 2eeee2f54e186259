//! The result of a training run.

use super::profile::RankProfile;
use crate::measure::{inputs, statistics};
use allfold_collectives::Activity;
use allfold_report::records::{Breakdown, BucketLife, WaitingByStep, WaitingFor};
use allfold_sim::Picos;
use allfold_trainer::timing::{BucketTimes, StepSpan};
use allfold_trainer::{MemoryUse, TrainResult};
use std::ops::Range;

/// The result of a run.
pub struct Trained {
    /// The result of rank 0.
    pub result: TrainResult,
    /// The steps of each rank; if this process is one rank of several, its steps alone.
    pub steps: Vec<Vec<RankStep>>,
    /// The profiles of the same ranks; without steps if the run was not profiled.
    pub profiles: Vec<RankProfile>,
    /// For whom ranks wait in each step; of a long run, in steps at even distances and in the last. Empty if this is not recorded.
    pub waiting: WaitingByStep,
    /// The activities of all ranks, on virtual time.
    pub timeline: Vec<Activity>,
    /// The number of ranks.
    pub ranks: u32,
    /// The samples of a rank in a step.
    pub batch: usize,
    /// The name of each rank's device: `cpu`, a GPU's name, or a device model's.
    pub device: String,
    /// Whether the device is a GPU.
    pub on_gpus: bool,
}

/// One step of one rank.
#[derive(Clone, Debug)]
pub struct RankStep {
    /// When the step began on this rank.
    pub start: Picos,
    /// The time by parts of the step.
    pub time: allfold_trainer::timing::StepBreakdown,
    /// The learning rate of the step.
    pub lr: f64,
    /// The memory that the rank held when the step ended.
    pub memory: MemoryUse,
    /// The times of the step's buckets, in the step that is recorded.
    pub buckets: Vec<BucketTimes>,
    /// The memory of the rank at the time in the step when it held the most, if spans were requested; otherwise the same as
    /// `memory`.
    pub peak: MemoryUse,
    /// The rank's work and waiting, in the step that is recorded, if spans were requested.
    pub spans: Vec<StepSpan>,
}

impl RankStep {
    /// When the step began and when it ended.
    pub fn span(&self) -> (Picos, Picos) {
        (self.start, self.start + self.time.total())
    }

    /// The times of the buckets from the start of the step on. Empty for a step whose buckets were not kept.
    pub(super) fn bucket_lives(&self) -> Vec<BucketLife> {
        let us = |time: Picos| Picos(time.0.saturating_sub(self.start.0)).as_micros();
        let life = |times: &BucketTimes| BucketLife {
            bucket: times.bucket,
            params: times.params,
            bytes: times.bytes,
            ready_us: us(times.ready),
            sent_us: us(times.sent),
            done_us: us(times.done),
        };
        self.buckets.iter().map(life).collect()
    }
}

impl Trained {
    /// Hash of every loss, bit for bit.
    pub fn losses_hash(&self) -> String {
        format!("{:016x}", inputs::hash(&self.result.losses))
    }

    /// Hash of the final weights, bit for bit.
    pub fn weights_hash(&self) -> String {
        format!("{:016x}", self.result.weights_hash)
    }

    /// The number of warm-up steps at the start, which are not timed: the first step, which fills caches; on GPUs the first third
    /// of the steps, which compile kernels, search for the fastest algorithms and capture graphs. 0 if there is a single step.
    pub fn warmup(&self) -> usize {
        let made = self.made();
        let warmup = if self.on_gpus { (made / 3).max(1) } else { 1 };
        warmup.min(made.saturating_sub(1))
    }

    /// The steps that are timed, of the rank of this process that takes longest for them.
    fn counted(&self) -> &[RankStep] {
        let timed = self.steps.iter().filter_map(|steps| steps.get(self.warmup()..));
        timed
            .max_by_key(|steps| steps.iter().map(|step| step.time.total().0).sum::<u64>())
            .unwrap_or_default()
    }

    /// The times of the steps of the slowest rank in microseconds, without warm-up steps; those of this process's rank if it is one of
    /// several.
    pub fn step_times_us(&self) -> Vec<f64> {
        self.counted().iter().map(|step| step.time.total().as_micros()).collect()
    }

    /// Mean time of a step of the slowest rank in microseconds and its standard error, without warm-up steps.
    pub fn step_us(&self) -> (f64, f64) {
        statistics::mean_and_error(&self.step_times_us())
    }

    /// Training samples per second, over all ranks, by [`Trained::step_us`]; 0 where no time passed.
    pub fn throughput(&self) -> f64 {
        let samples = self.result.samples as f64 / self.made().max(1) as f64;
        let (time_us, _) = self.step_us();
        if time_us == 0.0 { 0.0 } else { samples / (time_us / 1e6) }
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

    /// The number of steps that this process ran: of a resumed run, the last ones.
    pub fn made(&self) -> usize {
        self.steps[0].len()
    }

    /// How long each rank waits for each other one in a step, on average over the steps after the warm-up.
    pub fn mean_waiting_for(&self) -> Vec<WaitingFor> {
        let before = self.result.losses.len() - self.made();
        self.waiting.mean((before + self.warmup()) as u64)
    }

    /// The memory that rank 0 held after its last step, if it ran one.
    pub fn memory(&self) -> Option<MemoryUse> {
        self.steps[0].last().map(|step| step.memory)
    }

    /// A step of the run on rank 0; `None` if this process did not make it.
    fn step(&self, step: u64) -> Option<&RankStep> {
        let first = self.result.losses.len() - self.made();
        let at = usize::try_from(step).ok().and_then(|step| step.checked_sub(first));
        at.and_then(|at| self.steps[0].get(at))
    }

    /// The time of these steps of rank 0 together, in seconds; `None` if this process did not make all of them.
    pub(super) fn seconds(&self, mut steps: Range<u64>) -> Option<f64> {
        steps.try_fold(0.0, |sum, step| Some(sum + self.step(step)?.time.total().as_secs()))
    }

    /// How the time of a step of the slowest rank is spent, on average over the steps after the warm-up.
    /// On GPUs the parts are one piece of work for the host.
    pub fn breakdown(&self) -> Breakdown {
        let parts = breakdown_of(self.counted());
        match self.on_gpus {
            true => Breakdown { forward_us: f64::NAN, exposed_us: f64::NAN, optimiser_us: f64::NAN, ..parts },
            false => parts,
        }
    }
}

/// How the time of a step is spent, on average over these steps.
pub(super) fn breakdown_of(steps: &[RankStep]) -> Breakdown {
    let mut total = allfold_trainer::timing::StepBreakdown::default();
    steps.iter().for_each(|step| total += step.time);
    let us = |time: Picos| time.as_micros() / steps.len().max(1) as f64;
    Breakdown {
        data_us: us(total.data),
        forward_us: us(total.forward),
        backward_us: us(total.backward),
        exposed_us: us(total.exposed),
        optimiser_us: us(total.optimiser),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_trainer::{Evaluation, timing};

    /// Two ranks of 8 samples: the first step takes 900 us, each of the others 100 us.
    fn trained(on_gpus: bool, steps: usize) -> Trained {
        let step = |at: usize| RankStep {
            start: Picos::ZERO,
            time: timing::StepBreakdown {
                forward: Picos(if at == 0 { 900_000_000 } else { 100_000_000 }),
                ..timing::StepBreakdown::default()
            },
            lr: 0.1,
            memory: MemoryUse::default(),
            buckets: Vec::new(),
            peak: MemoryUse::default(),
            spans: Vec::new(),
        };
        Trained {
            result: TrainResult {
                losses: vec![1.0; steps],
                epochs: Vec::new(),
                whole_epochs: 0,
                ended_early: false,
                test: Evaluation { labels: 0, correct: 0, loss: 0.0 },
                weights_hash: 0,
                parameters: 0,
                samples: 16 * steps as u64,
                time: Picos(900_000_000 + 100_000_000 * (steps as u64 - 1)),
                breakdown: timing::StepBreakdown::default(),
                exchange: None,
                buckets: Vec::new(),
            },
            steps: vec![(0..steps).map(step).collect(); 2],
            profiles: Vec::new(),
            waiting: WaitingByStep::default(),
            timeline: Vec::new(),
            batch: 8,
            ranks: 2,
            device: "cpu".into(),
            on_gpus,
        }
    }

    #[test]
    fn steps_that_warm_up_count_in_no_average_of_a_record() {
        let config = allfold_trainer::Config::default();
        let trained = trained(false, 5);
        let end = trained.records::<true>(&config, "threads", 0).pop().and_then(|step| step.end).unwrap();
        assert_eq!((end.warmup_steps, end.time_us, end.samples_per_s.round()), (1, 100.0, 160_000.0));
        assert_eq!(end.breakdown.forward_us, end.time_us, "the parts are of the same steps");
    }

    #[test]
    fn a_run_of_one_step_is_all_there_is_and_gpus_warm_up_for_a_third() {
        assert_eq!((trained(false, 1).warmup(), trained(false, 1).step_us().0), (0, 900.0));
        assert_eq!([2, 3, 9].map(|steps| trained(true, steps).warmup()), [1, 1, 3]);
    }
}
