//! The steps of all ranks, of a run or on the clock: their memory, waiting and communication.

use super::records::held;
use super::trained::{RankStep, Trained, breakdown_of};
use crate::measure::statistics;
use allfold_collectives::Activity;
use allfold_prediction::{EveryRank, SteppedRank};
use allfold_report::records::{Breakdown, RankMemory};
use allfold_sim::Picos;
use allfold_trainer::MemoryUse;
use allfold_trainer::timing::{BucketTimes, StepSpan};
use std::collections::BTreeMap;

/// The steps of all ranks, and what they communicated.
#[derive(Clone, Copy)]
pub struct RankSteps<'a> {
    /// The steps of each rank.
    pub of_ranks: &'a [Vec<RankStep>],
    /// The activities of all ranks, on virtual time.
    pub timeline: &'a [Activity],
    /// The number of steps at the start that are not timed.
    pub warmup: usize,
}

impl<'a> From<&'a Trained> for RankSteps<'a> {
    fn from(trained: &'a Trained) -> RankSteps<'a> {
        RankSteps { of_ranks: &trained.steps, timeline: &trained.timeline, warmup: trained.warmup() }
    }
}

/// The last step of each rank on the clock, as that of a run.
pub fn last_steps(every: &EveryRank) -> Vec<Vec<RankStep>> {
    let step = |rank: &SteppedRank| {
        let start = rank.start;
        let span = |span: &StepSpan| StepSpan { start: start + span.start, end: start + span.end, ..*span };
        let bucket = |times: &BucketTimes| BucketTimes {
            ready: start + times.ready,
            sent: start + times.sent,
            done: start + times.done,
            ..times.clone()
        };
        let memory = rank.peak.unwrap_or_default();
        vec![RankStep {
            start,
            time: rank.time,
            lr: 0.0,
            memory,
            buckets: rank.buckets.iter().map(bucket).collect(),
            peak: memory,
            spans: rank.spans.iter().map(span).collect(),
        }]
    };
    every.ranks.iter().map(step).collect()
}

impl RankSteps<'_> {
    /// Median time of a step of the slowest rank in microseconds, without warm-up steps.
    pub fn median_step_us(&self) -> f64 {
        let made = self.of_ranks.first().map_or(0, Vec::len);
        let slowest = |step: usize| {
            let of = self.of_ranks.iter().filter_map(|steps| steps.get(step));
            of.map(|step| step.time.total().as_micros()).fold(0.0, f64::max)
        };
        statistics::median((self.warmup..made).map(slowest).collect())
    }

    /// Where the time of a step goes, on average over the steps of all ranks after the warm-up.
    pub fn mean_breakdown(&self) -> Breakdown {
        let counted = self.of_ranks.iter().filter_map(|steps| steps.get(self.warmup..));
        breakdown_of(&counted.flatten().cloned().collect::<Vec<_>>())
    }

    /// The memory of each rank at the time when it held the most in any step.
    pub fn peaks(&self) -> Vec<MemoryUse> {
        let most = |steps: &Vec<RankStep>| steps.iter().map(|step| step.peak).max_by_key(MemoryUse::total);
        self.of_ranks.iter().map(|steps| most(steps).unwrap_or_default()).collect()
    }

    /// The memory of the rank that holds the most, at that time.
    pub fn peak(&self) -> RankMemory {
        held(self.peaks().into_iter().max_by_key(MemoryUse::total).unwrap_or_default())
    }

    /// Time that each rank waits for others in a step, in microseconds, as the mean over the steps that do not warm up.
    pub fn waiting_us(&self) -> Vec<f64> {
        let counted = |steps: &Vec<RankStep>| {
            let steps = steps.get(self.warmup..).unwrap_or_default();
            let all: f64 = steps.iter().map(|step| step.time.exposed.as_micros()).sum();
            all / steps.len().max(1) as f64
        };
        self.of_ranks.iter().map(counted).collect()
    }

    /// When each rank's last step began and ended.
    fn last_step(&self) -> Vec<Option<(Picos, Picos)>> {
        self.of_ranks.iter().map(|steps| steps.last().map(RankStep::span)).collect()
    }

    /// For the last step: how long each rank's communication is under way, in microseconds.
    pub fn communication_us(&self) -> Vec<f64> {
        let mut spans: Vec<Vec<(Picos, Picos)>> = vec![Vec::new(); self.of_ranks.len()];
        let last = self.last_step();
        for Activity { rank, start, end, .. } in
            self.timeline.iter().filter(|activity| activity.what != "compute")
        {
            let Some((from, to)) = last.get(rank.index()).copied().flatten() else { continue };
            if *start < to && *end > from {
                spans[rank.index()].push(((*start).later(from), Picos(end.0.min(to.0))));
            }
        }
        // Operations of several communicators may be under way at once.
        let busy = |mut spans: Vec<(Picos, Picos)>| {
            spans.sort_unstable();
            let mut until = Picos::ZERO;
            let time = spans.into_iter().map(|(start, end)| {
                let begin = start.later(until);
                until = until.later(end);
                Picos(end.0.saturating_sub(begin.0)).as_micros()
            });
            time.sum()
        };
        spans.into_iter().map(busy).collect()
    }

    /// For the last step: the bytes that each rank sent, and the bytes of each operation over all ranks.
    pub fn sent(&self) -> (Vec<u64>, BTreeMap<String, u64>) {
        let mut by_rank = vec![0; self.of_ranks.len()];
        let mut by_operation = BTreeMap::new();
        let last = self.last_step();
        for Activity { rank, what, start, end, sent, .. } in
            self.timeline.iter().filter(|activity| activity.sent > 0)
        {
            let Some((from, to)) = last.get(rank.index()).copied().flatten() else { continue };
            if *start >= from && *end <= to {
                by_rank[rank.index()] += sent;
                let operation = what.split('(').next().unwrap_or(what).to_string();
                *by_operation.entry(operation).or_default() += sent;
            }
        }
        (by_rank, by_operation)
    }
}
