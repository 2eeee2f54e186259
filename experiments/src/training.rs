//! Training runs as the commands need them: on threads or on virtual time, with a bar, as records.

use crate::cli::failure::{Failure, Outcome};
use crate::cli::memory;
use crate::cli::progress::Lines;
use crate::elastic;
use crate::measure::{gpus, ranks, samples, statistics};
use crate::records::{
    Breakdown, BucketLife, MeasuredEnd, MeasuredStep, SimulatedEnd, SimulatedStep, TimelineSpan,
};
use crate::tensorboard::Events;
use allfold_collectives::environment::Environment;
use allfold_collectives::{Activity, Communicator, Rank, World};
use allfold_sim::{Device, Picos, Topology};
use allfold_trainer::timing::BucketTimes;
use allfold_trainer::{Config, Dataset, EpochReport, Memory, Observer, StepReport, TrainResult};
use indicatif::ProgressBar;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

/// Where ranks run.
#[derive(Clone)]
pub enum Place {
    /// Threads of this process, real time.
    Threads(u32),
    /// This process is one rank of a world that a launcher has started.
    Process(Box<Environment>),
    /// This process is one rank of the MPI job that mpirun has started: which, and of how many.
    Mpi(Rank, u32),
    /// Threads on virtual time: one for each rank of a topology, each computing on a device.
    Sim(Box<(Topology, Device)>),
}

/// What came of a run.
pub struct Trained {
    /// As rank 0 saw it.
    pub result: TrainResult,
    /// Every step, as each rank saw it.
    pub steps: Vec<Vec<Step>>,
    /// What ranks did, on virtual time.
    pub timeline: Vec<Activity>,
}

/// What is kept of a run beside its losses and times.
#[derive(Default)]
pub struct Noted {
    /// Rank 0's numbers, for TensorBoard.
    pub events: Option<Events>,
    /// The step whose buckets are; the last, if no other.
    pub step: Option<u64>,
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

/// Reads a configuration file.
///
/// # Errors
/// The file cannot be read, or says something that makes no sense; with line and column.
pub fn config(path: &Path) -> Outcome<Config> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "{name}: {error}; name a TOML file such as experiments/configs/digits-cnn.toml"
        ))
    })?;
    Config::parse(&text, &name).map_err(Failure::usage)
}

impl Place {
    /// How many ranks run there.
    pub fn ranks(&self) -> u32 {
        match self {
            Place::Threads(ranks) => *ranks,
            Place::Process(environment) => environment.world_size,
            Place::Mpi(_, ranks) => *ranks,
            Place::Sim(machine) => machine.0.ranks(),
        }
    }

    /// Whether this process tells what came of the run: of several one does.
    pub fn speaks(&self) -> bool {
        match self {
            Place::Process(environment) => environment.rank == Rank(0),
            Place::Mpi(rank, _) => *rank == Rank(0),
            Place::Threads(_) | Place::Sim(_) => true,
        }
    }
}

/// The data that `config` names, to train on and to be scored on; what is to compute is asked for first, so that what is
/// missing is said once, and not by every rank.
///
/// # Errors
/// Data or a device that is missing.
pub fn load(config: &Config) -> Outcome<(Dataset, Dataset)> {
    allfold_trainer::cuda::open(config).map_err(failed)?;
    allfold_trainer::data::load(config).map_err(failed)
}

/// Trains on the data that `config` names, as [`run_on`].
///
/// # Errors
/// As [`load`] and [`run_on`].
pub fn run(config: &Config, place: &Place, bar: &ProgressBar) -> Outcome<Trained> {
    run_on(config, &load(config)?, place, bar, Noted::default())
}

/// Trains on any data; `bar` moves with rank 0's steps.
///
/// # Errors
/// A configuration that does not fit, or a run that fails.
pub fn run_on(
    config: &Config,
    (data, test): &(Dataset, Dataset),
    place: &Place,
    bar: &ProgressBar,
    noted: Noted,
) -> Outcome<Trained> {
    let each = allfold_trainer::models::memory(config, data.shape, data.classes).map_err(failed)?;
    let ranks = place.ranks();
    if !matches!(place, Place::Process(_) | Place::Mpi(..)) {
        memory::require(each.checked_mul(u64::from(ranks)), &format!("the models of {ranks} ranks"))?;
    }
    // Of rank 0 alone, in each epoch of an elastic world.
    let (events, kept) = (Mutex::new(noted.events), noted.step);
    let one = |config: &Config, comm: &Communicator| {
        let first = comm.rank().0 == 0;
        let events = if first { events.lock().ok() } else { None };
        let bar = first.then_some(bar);
        let lines = bar.filter(|bar| bar.is_hidden()).map(|_| Lines::begin());
        let mut watch = Watch { comm, config, bar, lines, steps: Vec::new(), events, kept };
        let result = allfold_trainer::train_on(config, data, test, comm, &mut watch)?;
        Ok((result, watch.steps))
    };
    let alone = |config: &Config, comm: &Communicator| {
        let (result, steps) = one(config, comm)?;
        Ok(Trained { result, steps: vec![steps], timeline: Vec::new() })
    };
    let world = match place {
        Place::Threads(ranks) => World::threads(*ranks).any(),
        Place::Sim(machine) => {
            World::sim(&machine.0).costs(machine.0.costs()).device(machine.1).timeline().any()
        }
        Place::Process(environment) => {
            return elastic::run(config, environment, alone);
        }
        Place::Mpi(..) => {
            return alone(config, &over_mpi(false)?).map_err(failed);
        }
    };
    let report = world.run_each(|comm: Communicator| one(config, &comm)).map_err(ranks::failed)?;
    let first = report.first.map_or(0, |rank| rank.index());
    let mut ranks = report.ranks;
    if ranks.iter().any(Result::is_err) {
        let error = ranks.swap_remove(first).err();
        return Err(error.map_or_else(|| Failure::run("a rank failed"), failed));
    }
    let (results, steps): (Vec<TrainResult>, Vec<Vec<Step>>) = ranks.into_iter().flatten().unzip();
    let result = results.into_iter().next().ok_or_else(|| Failure::run("no rank trained"))?;
    Ok(Trained { result, steps, timeline: report.timeline })
}

/// This process as a rank of its MPI job; `native`: by MPI's own collectives where no algorithm is named.
///
/// # Errors
/// This program was built without MPI; MPI cannot be started.
#[cfg(feature = "mpi")]
pub fn over_mpi(native: bool) -> Outcome<Communicator> {
    use allfold_collectives::Joining;
    use allfold_collectives::mpi::Options;
    let flight = Joining::from_env().map_err(ranks::failed)?.flight;
    Communicator::over_mpi(Options { native, flight, ..Options::default() }).map_err(ranks::failed)
}

/// This process as a rank of its MPI job.
///
/// # Errors
/// Always: this program was built without MPI.
#[cfg(not(feature = "mpi"))]
pub fn over_mpi(_native: bool) -> Outcome<Communicator> {
    Err(Failure::usage(
        "this allfold was built without MPI: scripts/install-mpi.sh, then cargo build --release --features mpi",
    ))
}

pub(crate) fn failed(error: allfold_trainer::Error) -> Failure {
    match error {
        // From the same numbers it would diverge again; the one abort of a run is how the other ranks hear of it.
        allfold_trainer::Error::NotFinite { .. }
        | allfold_trainer::Error::Collective(allfold_collectives::Error::Aborted { .. })
        | allfold_trainer::Error::Config(_)
        | allfold_trainer::Error::Network(_)
        | allfold_trainer::Error::Data(_)
        | allfold_trainer::Error::Checkpoint(_) => Failure::usage(error),
        allfold_trainer::Error::Collective(error) => ranks::failed(error),
        allfold_trainer::Error::Device(error) => gpus::failed(error),
        error => Failure::run(error),
    }
}

/// Notes every step and moves the bar, or says where it would be.
struct Watch<'a> {
    comm: &'a Communicator,
    config: &'a Config,
    events: Option<MutexGuard<'a, Option<Events>>>,
    bar: Option<&'a ProgressBar>,
    /// Where the bar cannot be seen.
    lines: Option<Lines>,
    steps: Vec<Step>,
    /// The step whose buckets are kept, if not the last.
    kept: Option<u64>,
}

impl Observer for Watch<'_> {
    fn step(&mut self, report: &StepReport) {
        let StepReport { step, steps, time, memory, .. } = *report;
        let kept = self.kept.unwrap_or(steps - 1) == step;
        let buckets = if kept { report.buckets.to_vec() } else { Vec::new() };
        self.steps.push(Step { end: self.comm.now(), time, memory, buckets });
        if let Some(bar) = self.bar {
            bar.set_length(report.steps);
            bar.set_position(report.step + 1);
            let rate = self.config.batch as f64 * f64::from(self.comm.size()) / report.time.total().as_secs();
            let message = format!("loss {:.4}, {rate:.0} samples/s", report.loss);
            if let Some(lines) = &mut self.lines {
                lines.step(report.step, report.steps, &message);
            }
            bar.set_message(message);
        }
        self.note(report);
    }

    fn epoch(&mut self, report: &EpochReport) {
        if let Some(events) = self.events.as_deref_mut().and_then(Option::as_mut) {
            let [loss, accuracy] =
                ["loss", "accuracy"].map(|what| format!("{}/{what}", self.config.scored_on()));
            let values = [
                ("epoch/loss", report.loss),
                (&*loss, report.test.loss),
                (&*accuracy, report.test.accuracy()),
            ];
            if let Err(failure) = events.scalars(report.steps, &values) {
                self.end_events(&failure);
            }
        }
    }
}

impl Watch<'_> {
    /// A step's numbers for TensorBoard. A file that cannot be written any more ends no run.
    fn note(&mut self, report: &StepReport) {
        let Some(events) = self.events.as_deref_mut().and_then(Option::as_mut) else { return };
        let (time, memory) = (report.time, report.memory);
        let ms = |part: Picos| part.as_micros() / 1e3;
        let values = [
            ("loss", report.loss),
            ("lr", report.lr),
            ("step_ms/data", ms(time.data)),
            ("step_ms/forward", ms(time.forward)),
            ("step_ms/backward", ms(time.backward)),
            ("step_ms/exposed", ms(time.exposed)),
            ("step_ms/optimiser", ms(time.optimiser)),
            ("bytes/params", memory.params as f64),
            ("bytes/gradients", memory.gradients as f64),
            ("bytes/buffers", memory.buffers as f64),
            ("bytes/activations", memory.activations as f64),
            ("bytes/saved", memory.saved as f64),
            ("bytes/down", memory.down as f64),
            ("bytes/optimiser", memory.optimiser as f64),
            ("bytes/buckets", memory.buckets as f64),
        ];
        if let Err(failure) = events.scalars(report.step, &values) {
            self.end_events(&failure);
        }
    }

    fn end_events(&mut self, failure: &Failure) {
        let _ = writeln!(std::io::stderr(), "{failure}; TensorBoard will see no more of this run");
        if let Some(events) = self.events.as_deref_mut() {
            *events = None;
        }
    }
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
    fn buckets(&self, step: u64) -> Vec<BucketLife> {
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

    /// The bars of one step of the run: the parts of each rank's own work, and what it communicated meanwhile. None of a step
    /// that this process did not make.
    pub fn spans(&self, step: usize) -> Vec<TimelineSpan> {
        let Some(step) = step.checked_sub(self.result.losses.len() - self.made()) else { return Vec::new() };
        let begin = |s: &Step| Picos(s.end.0.saturating_sub(s.time.total().0));
        let start = self.steps.iter().filter_map(|s| s.get(step)).map(begin).min().unwrap_or_default();
        let at = |time: Picos| time.0.saturating_sub(start.0) as f64 / 1e6;
        let mut spans = Vec::new();
        for (rank, of) in (0u32..).zip(&self.steps) {
            let Some(done) = of.get(step) else { continue };
            let (mut now, time) = (begin(done), done.time);
            let parts = [
                ("data", time.data),
                ("forward", time.forward),
                ("backward", time.backward),
                ("exposed", time.exposed),
                ("optimiser", time.optimiser),
            ];
            for (name, length) in parts.into_iter().filter(|(_, length)| length.0 > 0) {
                let (start_us, end_us) = (at(now), at(now + length));
                spans.push(TimelineSpan {
                    rank,
                    stream: "compute".into(),
                    name: name.into(),
                    start_us,
                    end_us,
                });
                now += length;
            }
            // On virtual time what the communicator did is known; elsewhere, when it had each bucket. They go one by one.
            let mut free = Picos::ZERO;
            for bucket in done.buckets.iter().filter(|_| self.timeline.is_empty()) {
                let start = bucket.sent.later(free);
                free = bucket.done.later(free);
                spans.push(TimelineSpan {
                    rank,
                    stream: "communication".into(),
                    name: format!("bucket {}, {} bytes", bucket.bucket, bucket.bytes),
                    start_us: at(start),
                    end_us: at(free.later(start)),
                });
            }
            let (from, to) = (begin(done), done.end);
            let inside =
                |a: &&Activity| a.rank.0 == rank && a.what != "compute" && a.start >= from && a.end <= to;
            for activity in self.timeline.iter().filter(inside) {
                spans.push(TimelineSpan {
                    rank,
                    stream: "communication".into(),
                    name: activity.what.clone(),
                    start_us: at(activity.start),
                    end_us: at(activity.end),
                });
            }
        }
        spans
    }
}

/// The records of a run, measured or simulated: the types are two, their fields alike.
macro_rules! records {
    ($(#[$doc:meta])* $name:ident, $step:ident, $end:ident, $backend:literal) => {
        impl Trained {
            $(#[$doc])*
            pub fn $name(&self, config: &Config, ranks: u32) -> Vec<$step> {
                let steps = self.result.losses.len();
                let end = $end {
                    accuracy: self.result.test.accuracy(),
                    samples_per_s: self.result.throughput(),
                    steady_samples_per_s: (config.device == "cuda").then(|| self.steady_throughput()),
                    time_us: self.result.time.as_micros() / self.made().max(1) as f64,
                    breakdown: self.breakdown(),
                    memory: self.memory(),
                    losses_hash: self.losses_hash(),
                    weights_hash: self.weights_hash(),
                };
                let record = |(step, &loss)| $step {
                    backend: $backend.into(),
                    model: config.model.clone(),
                    strategy: config.strategy.clone(),
                    ranks,
                    step,
                    loss,
                    buckets: self.buckets(step),
                    end: (step + 1 == steps as u64).then(|| end.clone()),
                };
                (0u64..).zip(&self.result.losses).map(record).collect()
            }
        }
    };
}

records! {
    /// A record per step of a run on threads.
    measured, MeasuredStep, MeasuredEnd, "threads"
}
records! {
    /// A record per step of a run of processes that talk over TCP.
    measured_over_tcp, MeasuredStep, MeasuredEnd, "tcp"
}
records! {
    /// A record per step of a run of processes of an MPI job.
    measured_over_mpi, MeasuredStep, MeasuredEnd, "mpi"
}
records! {
    /// A record per step of a run on virtual time.
    simulated, SimulatedStep, SimulatedEnd, "sim"
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_trainer::Error;

    #[test]
    fn what_was_lost_meanwhile_may_be_tried_again_and_what_never_fitted_may_not() {
        assert!(matches!(failed(Error::Data("no such file".into())), Failure::Usage(_)));
        assert!(matches!(failed(Error::Lost("no such file".into())), Failure::Run(_)));
    }
}
