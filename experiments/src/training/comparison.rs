//! Trains one configuration with several strategies on the same samples, and compares their time, bytes and memory.

use super::launch_mode::{LaunchMode, SimulatedRanks};
use super::rank_steps::{RankSteps, last_steps};
use super::records::{held, setup};
use super::run::{self, RecordOptions};
use super::trained::Trained;
use super::waiting::waiting_in_step;
use allfold_cli::devices::RankDevices;
use allfold_cli::error::CommandResult;
use allfold_collectives::Plan;
use allfold_prediction::{
    MOST_LINKED, ModeledMachine, NcclSystem, StepPrediction, predict, predict_every_rank,
};
use allfold_report::format::counted;
use allfold_report::records::{
    Breakdown, ComparedStrategy, MeasuredComparison, Setup, SimulatedComparison, TimelineSpan,
};
use allfold_sim::Picos;
use allfold_trainer::timing::StepBreakdown;
use allfold_trainer::{Config, Dataset, MemoryUse, SampleForm, strategies};
use indicatif::ProgressBar;
use std::collections::BTreeMap;

/// Micro-batches for each stage of a pipeline whose configuration asks for one micro-batch, which would leave all stages but one
/// idle.
const MICRO_BATCHES: usize = 4;

/// The most work of a step of which every message is simulated: bars of a rank times ranks times messages of a rank in an exchange. More
/// would take minutes.
const MOST_WORK: u64 = 500_000;

/// A strategy of a comparison, with the configuration that it trains by.
pub struct Contender {
    /// The configuration. All contenders take the same samples in a step.
    pub config: Config,
    /// The number of ranks that train: 1 for `single`.
    pub ranks: u32,
}

/// The bars, of which neighbours of one name are one: the passes of layers in a micro-batch.
fn joined(spans: Vec<TimelineSpan>) -> Vec<TimelineSpan> {
    let mut all: Vec<TimelineSpan> = Vec::new();
    for span in spans {
        let same = |last: &&mut TimelineSpan| {
            (last.rank, &last.stream, &last.name) == (span.rank, &span.stream, &span.name)
                && last.end_us == span.start_us
        };
        match all.last_mut().filter(same) {
            Some(last) => last.end_us = span.end_us,
            None => all.push(span),
        }
    }
    all
}

/// How many ranks have samples of their own: the product of the sizes of the axes `data` and `expert`.
fn sharers(axes: &BTreeMap<&'static str, u32>) -> u32 {
    ["data", "shard", "expert"].iter().filter_map(|axis| axes.get(axis)).product::<u32>().max(1)
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
        form: SampleForm,
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
        allfold_trainer::run::fits_network(&config, ranks, form)?;
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
        let noted = RecordOptions { spans: true, waiting: true, ..RecordOptions::default() };
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
    fn timed<const MEASURED: bool>(
        &self,
        trained: &Trained,
        (backend, machine): (&str, &str),
    ) -> ComparedStrategy<MEASURED> {
        ComparedStrategy {
            waiting_for: trained.mean_waiting_for(),
            loss: Some(trained.result.losses.last().copied().unwrap_or(f64::NAN)),
            weights_hash: Some(trained.weights_hash()),
            ..self.of_steps(trained.into(), (trained.setup(&self.config, backend), machine))
        }
    }

    /// The record of the steps of all ranks, without the bytes that they sent and for whom they wait.
    fn of_steps<const MEASURED: bool>(
        &self,
        steps: RankSteps,
        (setup, machine): (Setup, &str),
    ) -> ComparedStrategy<MEASURED> {
        ComparedStrategy {
            setup,
            batch: self.samples(),
            micro_batches: self.config.training.accumulate as u64,
            topology: machine.into(),
            step_us: steps.median_step_us(),
            breakdown: steps.mean_breakdown(),
            waiting_us: steps.waiting_us(),
            peak_bytes: steps.peaks().iter().map(MemoryUse::total).collect(),
            memory: steps.peak(),
            ..ComparedStrategy::default()
        }
    }

    /// The record and the last step, as bars, of a run on virtual time.
    pub fn simulated(&self, trained: &Trained, machine: &str) -> (SimulatedComparison, Vec<TimelineSpan>) {
        self.on_virtual_time(self.timed(trained, ("sim", machine)), trained.into())
    }

    /// The record and the last step, as bars, of ranks on the clock: no arithmetic is done.
    ///
    /// # Errors
    /// A configuration that cannot be predicted; more than [`allfold_prediction::MOST_SERVED`] ranks.
    pub fn modeled(
        &self,
        samples: SampleForm,
        (ranks, nccl): (&SimulatedRanks, Option<&NcclSystem>),
        machine: &str,
    ) -> allfold_trainer::Result<(SimulatedComparison, Vec<TimelineSpan>)> {
        let plan = Plan::default();
        let SimulatedRanks { topology, devices, faults } = ranks;
        let on =
            ModeledMachine { devices: faults, nccl, ..ModeledMachine::new(topology, devices.device, &plan) };
        if nccl.is_some() || self.ranks > MOST_LINKED {
            let outline = predict(&self.config, samples, &on)?;
            let longest = outline.spans.iter().map(Vec::len).max().unwrap_or(0) as u64;
            // A broadcast in parts sends as many messages as there are ranks; exchanges of other strategies take fewer rounds.
            let rounds =
                if self.config.strategy == "data_parallel" { self.ranks } else { self.ranks.ilog2() };
            let is_long = longest * u64::from(self.ranks) * u64::from(rounds) > MOST_WORK;
            if is_long {
                tracing::info!(
                    "{}: its {} exchange too much to simulate every message: one rank of each kind is predicted, without bytes and plot",
                    self.config.strategy,
                    counted(self.ranks as usize, "rank")
                );
            }
            if is_long || nccl.is_some() {
                let setup = setup(&self.config, "modeled", &devices.to_string(), self.ranks);
                return Ok((self.outlined(&outline, setup, machine), Vec::new()));
            }
        }
        let every = predict_every_rank(&self.config, samples, &on)?;
        let of_ranks = last_steps(&every);
        let steps = RankSteps { of_ranks: &of_ranks, timeline: &every.timeline, warmup: 0 };
        let setup = setup(&self.config, "modeled", &devices.to_string(), self.ranks);
        let spans = of_ranks.iter().flatten().map(|step| &step.spans[..]);
        let waiting_for = waiting_in_step(spans.zip(every.operations.iter().map(Vec::as_slice)));
        let timed = ComparedStrategy { waiting_for, ..self.of_steps(steps, (setup, machine)) };
        Ok(self.on_virtual_time(timed, steps))
    }

    /// The record of a step of which one rank of each kind was predicted: what every single rank sends is not known.
    fn outlined(&self, step: &StepPrediction, setup: Setup, machine: &str) -> SimulatedComparison {
        let StepBreakdown { data, forward, backward, exposed, optimiser } = step.time;
        let [data_us, forward_us, backward_us, exposed_us, optimiser_us] =
            [data, forward, backward, exposed, optimiser].map(Picos::as_micros);
        let devices = setup.device.parse::<RankDevices>().ok();
        SimulatedComparison {
            batch: self.samples(),
            micro_batches: self.config.training.accumulate as u64,
            topology: machine.into(),
            step_us: step.time.total().as_micros(),
            breakdown: Breakdown { data_us, forward_us, backward_us, exposed_us, optimiser_us },
            waiting_us: vec![exposed_us],
            communication_us: vec![step.communication.as_micros().max(exposed_us)],
            peak_bytes: step.peaks.iter().map(MemoryUse::total).collect(),
            memory: step.peak().map(held).unwrap_or_default(),
            device_memory: devices.and_then(|devices| devices.least_memory(setup.ranks)),
            setup,
            ..ComparedStrategy::default()
        }
    }

    /// The record of steps on virtual time, where what ranks send is known, and the last step as bars.
    fn on_virtual_time(
        &self,
        timed: SimulatedComparison,
        steps: RankSteps,
    ) -> (SimulatedComparison, Vec<TimelineSpan>) {
        let last = steps.of_ranks.first().map_or(0, Vec::len).saturating_sub(1);
        let mut spans = joined(steps.spans(last));
        spans.iter_mut().for_each(|span| span.strategy = Some(self.config.strategy.clone()));
        let (bytes_sent, bytes_by_operation) = steps.sent();
        let devices = timed.setup.device.parse::<RankDevices>().ok();
        let device_memory = devices.and_then(|devices| devices.least_memory(timed.setup.ranks));
        let communication_us = steps.communication_us();
        let record =
            ComparedStrategy { communication_us, bytes_sent, bytes_by_operation, device_memory, ..timed };
        (record, spans)
    }
}
