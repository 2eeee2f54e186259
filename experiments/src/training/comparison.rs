//! Trains one configuration with several strategies on the same samples, and compares their time, bytes and memory.

use super::launch_mode::LaunchMode;
use super::records::held;
use super::run::{self, RecordOptions};
use super::trained::{RankStep, Trained};
use super::waiting::waiting_for;
use crate::cli::error::CommandResult;
use allfold_collectives::Activity;
use allfold_report::records::{MeasuredComparison, RankMemory, SimulatedComparison, TimelineSpan};
use allfold_sim::Picos;
use allfold_trainer::{Config, Dataset, MemoryUse, strategies};
use indicatif::ProgressBar;
use std::collections::BTreeMap;

/// Micro-batches for each stage of a pipeline whose configuration asks for one micro-batch, which would leave all stages but one
/// idle.
const MICRO_BATCHES: usize = 4;

/// A strategy of a comparison, with the configuration that it trains by.
pub struct Contender {
    /// The configuration. All contenders take the same samples in a step.
    pub config: Config,
    /// The number of ranks that train: 1 for `single`.
    pub ranks: u32,
}

/// How many ranks have samples of their own: the product of the sizes of the axes `data` and `expert`.
fn sharers(axes: &BTreeMap<&'static str, u32>) -> u32 {
    ["data", "expert"].iter().filter_map(|axis| axes.get(axis)).product::<u32>().max(1)
}

impl Contender {
    /// The contender of `strategy`, with the samples that `ranks` ranks of data parallelism take in a step by `config`. `single`
    /// takes all of these samples on one rank.
    ///
    /// # Errors
    /// An unknown strategy, or one that does not take the configuration.
    pub fn new(
        config: &Config,
        strategy: &str,
        ranks: u32,
        dataset: &Dataset,
    ) -> allfold_trainer::Result<Contender> {
        let samples = config.training.batch.saturating_mul(ranks as usize);
        let mut config = config.clone().with(|c| c.strategy = strategy.into());
        let ranks = if strategy == "single" { 1 } else { ranks };
        if strategy == "pipeline" && config.training.accumulate == 1 {
            let stages = if config.parallel.stages == 0 { ranks as usize } else { config.parallel.stages };
            config.training.accumulate = (MICRO_BATCHES * stages).min(samples);
        }
        config.training.batch = samples / sharers(&strategies::axes(&config, ranks)?) as usize;
        allfold_trainer::config::check(&config)?;
        allfold_trainer::run::fits_network(&config, ranks, (dataset.shape, dataset.classes))?;
        Ok(Contender { config, ranks })
    }

    /// Samples of all ranks together in a step.
    fn samples(&self) -> u64 {
        let axes = strategies::axes(&self.config, self.ranks).unwrap_or_default();
        self.config.training.batch as u64 * u64::from(sharers(&axes))
    }

    /// Trains by the contender's configuration.
    ///
    /// # Errors
    /// A run that fails.
    pub fn train(
        &self,
        data: &(Dataset, Dataset),
        place: &LaunchMode,
        bar: &ProgressBar,
    ) -> CommandResult<Trained> {
        let noted = RecordOptions { spans: true, ..RecordOptions::default() };
        run::run_on(&self.config, data, place, bar, noted)
    }

    /// The record of a run on threads, whose ranks send what those of `simulated` send.
    pub fn measured(
        &self,
        trained: &Trained,
        machine: &str,
        simulated: &SimulatedComparison,
    ) -> MeasuredComparison {
        let SimulatedComparison { bytes_sent, bytes_by_operation, .. } = simulated.clone();
        MeasuredComparison { bytes_sent, bytes_by_operation, ..self.timed(trained, ("threads", machine)) }
    }

    /// The record of a run, without the bytes that it sent.
    fn timed(&self, trained: &Trained, (backend, machine): (&str, &str)) -> MeasuredComparison {
        let setup = trained.setup(&self.config, backend);
        let (batch, micro_batches) = (self.samples(), self.config.training.accumulate as u64);
        MeasuredComparison {
            setup,
            batch,
            micro_batches,
            topology: machine.into(),
            step_us: trained.median_step_us(),
            breakdown: trained.mean_breakdown(),
            waiting_us: trained.waiting_us(),
            waiting_for: waiting_for(trained),
            communication_us: Vec::new(),
            bytes_sent: Vec::new(),
            bytes_by_operation: BTreeMap::new(),
            peak_bytes: trained.peaks().iter().map(MemoryUse::total).collect(),
            memory: trained.peak(),
            loss: trained.result.losses.last().copied().unwrap_or(f64::NAN),
            weights_hash: trained.weights_hash(),
        }
    }

    /// The record of a run on virtual time.
    pub fn simulated(&self, trained: &Trained, machine: &str) -> SimulatedComparison {
        let timed = self.timed(trained, ("sim", machine));
        let MeasuredComparison { setup, batch, micro_batches, topology, step_us, breakdown, .. } = timed;
        let MeasuredComparison { waiting_us, waiting_for, peak_bytes, memory, loss, weights_hash, .. } =
            timed;
        let (bytes_sent, bytes_by_operation) = trained.sent();
        SimulatedComparison {
            setup,
            batch,
            micro_batches,
            topology,
            step_us,
            breakdown,
            waiting_us,
            waiting_for,
            communication_us: trained.communication_us(),
            bytes_sent,
            bytes_by_operation,
            peak_bytes,
            memory,
            loss,
            weights_hash,
        }
    }

    /// The last step of every rank as bars.
    pub fn spans(&self, trained: &Trained) -> Vec<TimelineSpan> {
        let mut spans = trained.spans(trained.result.losses.len().saturating_sub(1));
        spans.iter_mut().for_each(|span| span.strategy = Some(self.config.strategy.clone()));
        spans
    }
}

impl Trained {
    /// The memory of each rank at the time when it held the most in any step.
    fn peaks(&self) -> Vec<MemoryUse> {
        let most = |steps: &Vec<RankStep>| steps.iter().map(|step| step.peak).max_by_key(MemoryUse::total);
        self.steps.iter().map(|steps| most(steps).unwrap_or_default()).collect()
    }

    /// The memory of the rank that holds the most, at that time.
    pub fn peak(&self) -> RankMemory {
        held(self.peaks().into_iter().max_by_key(MemoryUse::total).unwrap_or_default())
    }

    /// Time that each rank waits for others in a step, in microseconds, as the mean over the steps that do not warm up.
    fn waiting_us(&self) -> Vec<f64> {
        let counted = |steps: &Vec<RankStep>| {
            let steps = steps.get(self.warmup()..).unwrap_or_default();
            let all: f64 = steps.iter().map(|step| step.time.exposed.as_micros()).sum();
            all / steps.len().max(1) as f64
        };
        self.steps.iter().map(counted).collect()
    }

    /// When each rank's last step began and ended.
    fn last_step(&self) -> Vec<Option<(Picos, Picos)>> {
        self.steps.iter().map(|steps| steps.last().map(RankStep::span)).collect()
    }

    /// For the last step: how long each rank's communication is under way, in microseconds.
    fn communication_us(&self) -> Vec<f64> {
        let mut spans: Vec<Vec<(Picos, Picos)>> = vec![Vec::new(); self.steps.len()];
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
    fn sent(&self) -> (Vec<u64>, BTreeMap<String, u64>) {
        let mut by_rank = vec![0; self.steps.len()];
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
