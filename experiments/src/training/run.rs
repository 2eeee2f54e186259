//! A training run on threads, as one process of several, or on virtual time, with a progress bar.

use super::elastic;
use super::launch_mode::{LaunchMode, SimulatedRanks, on_threads, over_mpi};
use super::profile::{ProfileSchedule, RankProfile};
use super::stopping::{RankStop, Stopping};
use super::tensorboard::Events;
use super::trained::{RankStep, Trained};
use super::waiting::WaitCollector;
use super::watch::{Follow, Watch};
#[cfg(feature = "cuda")]
use crate::measure::near_gpu;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::memory;
use allfold_collectives::{Communicator, World};
use allfold_report::format::counted;
use allfold_report::records::WaitingByStep;
#[cfg(feature = "cuda")]
use allfold_trainer::config::RankDevice;
use allfold_trainer::run::samples_of_rank;
use allfold_trainer::{Config, Dataset, SampleForm, TrainResult};
use indicatif::ProgressBar;
use std::sync::{Arc, Mutex};

/// The optional records of a run besides losses and times.
#[derive(Default)]
pub struct RecordOptions {
    /// The TensorBoard file of rank 0.
    pub events: Option<Events>,
    /// The step whose buckets are recorded; `None`: the last step.
    pub step: Option<u64>,
    /// Called with the events of rank 0.
    pub follow: Option<Follow>,
    /// Whether the losses over all ranks are needed about once a second. On virtual time they are known at the end of an epoch all the
    /// same, because an exchange would take virtual time.
    pub losses: bool,
    /// Whether the spans of `step`, and the peak of memory in every step, are recorded.
    pub spans: bool,
    /// Whether it is recorded for whom each rank waits in every step. Only ranks of one process that all compute on CPUs or on
    /// virtual time have such a record, because it compares the times of different ranks. The spans that it needs take a little
    /// real time in each step, as those of `spans` do.
    pub waiting: bool,
    /// The steps whose layers are recorded, if any.
    pub profile: Option<ProfileSchedule>,
    /// The agreement on where the run ends after a signal, if it does not end at once.
    pub stopping: Option<Arc<Stopping>>,
}

/// The training and test data that `config` names. Looks for the device first, so that a missing one is reported once
/// and not by every rank.
///
/// # Errors
/// Data or a device that is missing.
pub fn load(config: &Config) -> CommandResult<(Dataset, Dataset)> {
    allfold_trainer::cuda::open(config).map_err(CommandError::from)?;
    allfold_trainer::data::load(config).map_err(CommandError::from)
}

/// The form of the samples that `config` names. Calls `data`, which loads the samples, only if their files alone determine the form.
///
/// # Errors
/// Files that are missing; the error gives settings that need no files.
pub fn form(config: &Config, data: impl FnOnce() -> CommandResult<SampleForm>) -> CommandResult<SampleForm> {
    if let Some(form) = allfold_trainer::data::form(config) {
        return Ok(form);
    }
    let as_the_data = match &*config.data.name {
        "text" => "data.synthetic_classes, the number of different characters",
        _ => "data.synthetic_classes and data.synthetic_shape as the data have them",
    };
    data().map_err(|error| match error {
        CommandError::Usage(why) => CommandError::Usage(format!(
            "{why}; without the files: --set data.name=synthetic, and {as_the_data}"
        )),
        error => error,
    })
}

/// Trains on the data that `config` names, as [`run_on`].
///
/// # Errors
/// As [`load`] and [`run_on`].
pub fn run(config: &Config, place: &LaunchMode, bar: &ProgressBar) -> CommandResult<Trained> {
    run_on(config, &load(config)?, place, bar, RecordOptions::default())
}

/// The result of a rank, with the records of its steps and its profile.
type OfRank = allfold_trainer::Result<(TrainResult, (Vec<RankStep>, RankProfile))>;

/// The ranks on virtual time, with a record of their activities.
fn on_clock(machine: &SimulatedRanks) -> World {
    let world = World::sim(&machine.topology).costs(machine.topology.costs()).device(machine.devices.device);
    world.faults(machine.faults.clone()).timeline().any()
}

/// Binds this process, if its rank computes on a GPU, to the cores near the GPU.
fn bind(config: &Config, comm: &Communicator) -> allfold_trainer::Result<()> {
    let gpus = allfold_trainer::cuda::open(config)?;
    #[cfg(feature = "cuda")]
    if let (Some(gpus), RankDevice::Cuda(_)) = (&gpus, config.device_of(comm.rank().index())?) {
        let device = allfold_trainer::cuda::device_of(config, comm, &**gpus)?;
        near_gpu::bind_rank(&**gpus, device, comm.rank());
    }
    let _ = (gpus, comm);
    Ok(())
}

/// Trains on any data; `bar` moves with rank 0's steps.
///
/// # Errors
/// A configuration that does not fit, or a run that fails.
pub fn run_on(
    config: &Config,
    (data, test): &(Dataset, Dataset),
    place: &LaunchMode,
    bar: &ProgressBar,
    noted: RecordOptions,
) -> CommandResult<Trained> {
    let each = allfold_trainer::models::memory(config, data.form()).map_err(CommandError::from)?;
    let (device, on_gpus) = (place.device(config)?, config.uses_gpus());
    let ranks = place.ranks();
    let in_one_process = !place.is_one_rank();
    let held = if in_one_process { ranks } else { 1 };
    let what = format!("the models of {}", counted(held as usize, "rank"));
    memory::require(each.checked_mul(u64::from(held)), &what)?;
    // Rank 0 alone writes events and calls `follow`, in each epoch of an elastic world.
    let (events, follow) = (Mutex::new(noted.events), Mutex::new(noted.follow));
    let losses = noted.losses && !matches!(place, LaunchMode::Sim(_));
    let (kept, spans, schedule, stopping) = (noted.step, noted.spans, noted.profile, noted.stopping);
    let collector = WaitCollector::new(ranks).filter(|_| noted.waiting && in_one_process && !on_gpus);
    let waits = collector.as_ref();
    let one = |config: &Config, comm: &Communicator| -> OfRank {
        let first = comm.rank().0 == 0;
        let (events, follow) = if first { (events.lock().ok(), follow.lock().ok()) } else { (None, None) };
        let bar = first.then_some((bar, None));
        let (steps, profile) = (Vec::new(), RankProfile::default());
        let mut watch = Watch {
            comm,
            config,
            bar,
            follow,
            losses,
            steps,
            events,
            kept,
            spans,
            waits,
            schedule,
            profile,
            stop: stopping.as_deref().map(RankStop::of),
        };
        let result = allfold_trainer::train_on(config, data, test, comm, &mut watch)?;
        Ok((result, (watch.steps, watch.profile)))
    };
    let alone = |config: &Config, comm: &Communicator| {
        bind(config, comm)?;
        let (result, (steps, profile)) = one(config, comm)?;
        Ok(Trained {
            batch: samples_of_rank(config, comm.size(), data.len())?,
            result,
            steps: vec![steps],
            profiles: vec![profile],
            waiting: WaitingByStep::default(),
            timeline: Vec::new(),
            ranks,
            device: device.clone(),
            on_gpus,
        })
    };
    let world = match place {
        LaunchMode::Threads(ranks) => on_threads(*ranks)?.any(),
        LaunchMode::Sim(machine) => on_clock(machine),
        LaunchMode::Process(environment) => return elastic::run(config, environment, alone),
        LaunchMode::Joined(comm) => return alone(config, comm).map_err(CommandError::from),
        LaunchMode::Mpi(..) => return alone(config, &over_mpi(false)?).map_err(CommandError::from),
    };
    let mut report = world.run_each(|comm: Communicator| one(config, &comm)).map_err(CommandError::from)?;
    let timeline = std::mem::take(&mut report.timeline);
    if let LaunchMode::Sim(machine) = place {
        let end = timeline.iter().map(|done| done.end).max().unwrap_or_default();
        machine.faults.late(end).for_each(|note| tracing::info!("{note}"));
    }
    let ended = report.results().map_err(CommandError::from)?;
    let (results, records): (Vec<TrainResult>, Vec<_>) = ended.into_iter().unzip();
    let (steps, profiles) = records.into_iter().unzip();
    let result = results.into_iter().next().ok_or_else(|| CommandError::run("no rank trained"))?;
    let waiting = collector.map(WaitCollector::finish).unwrap_or_default();
    let batch = samples_of_rank(config, ranks, data.len())?;
    Ok(Trained { result, steps, profiles, waiting, timeline, ranks, batch, device, on_gpus })
}
