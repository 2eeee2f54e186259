//! A training run in progress: records of its steps and of its progress, and a summary when the user interrupts the run.
//!
//! ```text
//! ranks on threads or on virtual time   the step is ended, and a checkpoint written if the run writes any; then the program writes the
//!                                       summary and ends; if the ranks hang, a thread does
//! a launcher's ranks                    a thread writes the flight record; a run that writes checkpoints ends its step, writes one and
//!                                       ends; any other writes the summary of the last step at once
//! ```

use super::Args;
use crate::training::launch_mode::LaunchMode;
use crate::training::records::{SoFar, setup};
use crate::training::stopping::Stopping;
use crate::training::watch::{Follow, RunEvent};
use allfold_base::lock;
use allfold_cli::error::CommandResult;
use allfold_cli::interruption;
use allfold_cli::invocation;
use allfold_cli::output::RunOutput;
use allfold_cli::recorder::Recorder;
use allfold_collectives::write_flight_record;
use allfold_launch::WAS_ASKED;
use allfold_report::format;
use allfold_report::records::{RecordKind, RunProgress, Setup, Stamp};
use allfold_trainer::{Config, StepReport, checkpoint};
use serde::Deserialize;
use serde_json::Value;
use signal_hook::consts::SIGUSR1;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// The time between two records of progress.
const BETWEEN: Duration = Duration::from_secs(2);

/// Follows the steps of rank 0.
pub struct Live {
    progress: Arc<Progress>,
    /// When the last record was written; before the first record, when the run began.
    last: Instant,
    /// The file of the records, if they are written to a file.
    file: Option<PathBuf>,
    /// The steps of an epoch, and of the run.
    steps: [usize; 2],
}

/// A run that ends before its last step, as a run that diverges does, leaves a record of the last step that it made.
impl Drop for Live {
    fn drop(&mut self) {
        let last = lock(&self.progress.made).newest();
        if let Some(last) = last.filter(|last| last.step + 1 < last.steps) {
            self.progress.record(&last);
        }
    }
}

/// The progress of the run, for the records and the summary.
struct Progress {
    /// The recorder, and the origin of the records.
    records: (Recorder, Stamp),
    setup: Setup,
    /// Whether the times are of a real clock.
    measured: bool,
    /// Samples of all ranks in a step.
    samples: f64,
    /// Whether text is written to standard error, because records are written to standard output.
    to_stderr: bool,
    /// The folder of the run's checkpoints, if it has one.
    checkpoints: Option<PathBuf>,
    /// The step of the last record of progress.
    recorded: Mutex<Option<u64>>,
    /// The first step whose own record is not written yet.
    next: Mutex<usize>,
    made: Mutex<Made>,
    /// Done once the summary is written.
    summary: Once,
}

/// The steps that this process has made.
#[derive(Clone, Copy, Default)]
struct Made {
    last: Option<StepMade>,
    /// The last step whose loss is known.
    known: Option<StepMade>,
    /// The first step, and its loss.
    first: Option<(usize, f64)>,
}

impl Made {
    /// The last step, with its loss if that is known.
    fn newest(&self) -> Option<StepMade> {
        let step = self.last.map(|last| last.step);
        self.known.filter(|known| Some(known.step) == step).or(self.last)
    }
}

/// A step that was made.
#[derive(Clone, Copy)]
struct StepMade {
    step: u64,
    /// The steps of the run.
    steps: u64,
    /// The mean over all ranks; NaN while it is not known.
    loss: f64,
    lr: f64,
    seconds: f64,
}

impl Live {
    /// Follows a run for its records.
    ///
    /// # Errors
    /// A device that is missing.
    #[allow(
        clippy::disallowed_methods,
        reason = "records of progress are written every few seconds of real time"
    )]
    pub fn of(
        args: &Args,
        config: &Config,
        place: &LaunchMode,
        output: &RunOutput,
        steps: [u64; 2],
    ) -> CommandResult<Live> {
        let (backend, measured) = place.kind();
        let saves = config.checkpoint.writes() || config.checkpoint.resume;
        let progress = Arc::new(Progress {
            records: output.recorder(),
            setup: setup(config, backend, &place.device(config)?, place.ranks()),
            measured,
            samples: config.training.batch as f64 * f64::from(place.ranks()),
            to_stderr: args.common.json.as_deref() == Some(Path::new("-")),
            checkpoints: saves.then(|| PathBuf::from(&config.checkpoint.dir)),
            recorded: Mutex::new(None),
            next: Mutex::new(0),
            made: Mutex::default(),
            summary: Once::new(),
        });
        let file = args.common.json.clone().filter(|path| path.is_file());
        Ok(Live { progress, last: Instant::now(), file, steps: steps.map(|count| count as usize) })
    }

    /// A step is done. On virtual time its loss may become known much later.
    fn step(&mut self, report: &StepReport<'_>) {
        let (loss, lr, seconds) = (f64::NAN, report.lr, report.time.total().as_secs());
        let step = StepMade { step: report.step, steps: report.steps, loss, lr, seconds };
        lock(&self.progress.made).last = Some(step);
        self.tell(BETWEEN * 2);
    }

    /// Writes a record of the progress if the last one is this old.
    fn tell(&mut self, age: Duration) {
        if self.last.elapsed() >= age {
            self.last += self.last.elapsed();
            let newest = lock(&self.progress.made).newest();
            newest.iter().for_each(|step| self.progress.record(step));
        }
    }

    /// The losses so far are known: writes the records of their steps, except those that the file has already.
    fn losses(&mut self, so_far: &SoFar<'_>) {
        let (progress, losses) = (self.progress.clone(), &so_far.result.losses);
        let mut next = lock(&progress.next);
        match (losses.len() - so_far.made.len(), losses.last()) {
            (first, Some(&loss)) if first < losses.len() => {
                let mut made = lock(&progress.made);
                made.first = Some((first, losses[first]));
                made.known = made.last.map(|last| StepMade { loss, ..last });
            }
            _ => {
                *next = next.max(self.file.as_ref().map_or(0, |file| written(file, &progress.setup, so_far)))
            }
        }
        // The record of an epoch's last step waits for the score, and that of a step that may be the run's last for the end.
        let may_end = losses.len() == self.steps[1] || so_far.config.training.patience > 0;
        let open = may_end || losses.len().is_multiple_of(self.steps[0]);
        let end = losses.len().saturating_sub(usize::from(open));
        if *next < end {
            // A failure to write the file is reported when the run ends.
            let _ = match progress.measured {
                true => progress.write(&so_far.records::<true>(&progress.setup, *next..end, None)),
                false => progress.write(&so_far.records::<false>(&progress.setup, *next..end, None)),
            };
            *next = end;
        }
        self.tell(BETWEEN);
    }
}

/// How many of a run's steps a file of records has: those of the checkpoint that the run resumes from, and later ones, which an
/// interrupted run has made.
fn written(file: &Path, setup: &Setup, so_far: &SoFar<'_>) -> usize {
    let (losses, mut next) = (&so_far.result.losses, 0);
    let lines = File::open(file).map(|file| BufReader::new(file).lines().map_while(Result::ok));
    // A line that a killed run has cut is none.
    let records = lines.into_iter().flatten().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    let of_run = |record: &Value| {
        let same = Setup::deserialize(record).is_ok_and(|of| of == *setup);
        same && record["kind"] == "train" && record["seed"] == so_far.config.seed
    };
    for record in records.filter(of_run) {
        let own = losses.get(next).zip(record["loss"].as_f64());
        let same = own.is_none_or(|(own, loss)| (loss - own).abs() <= 1e-9 * own.abs());
        next += usize::from(same && record["step"] == next);
    }
    next
}

/// A run that is followed.
pub struct Followed {
    /// Called with the events of rank 0.
    pub follow: Option<Follow>,
    /// How the run ends after a signal.
    pub end: RunEnd,
}

/// The end of a run after a signal.
pub struct RunEnd {
    progress: Option<Arc<Progress>>,
    stopping: Option<Arc<Stopping>>,
}

impl Followed {
    /// Lets signals end the run that `live` follows, if this process reports it.
    pub fn of(live: Option<Live>, config: &Config, place: &LaunchMode) -> Followed {
        let progress = live.as_ref().map(|live| live.progress.clone());
        let of_run = progress.clone();
        let stopping = heed(config, place, move || of_run.iter().for_each(|progress| progress.end()));
        let follow = live.map(|mut live| {
            Box::new(move |event: RunEvent<'_>| match event {
                RunEvent::Step(report) => live.step(report),
                RunEvent::Losses(so_far) => live.losses(so_far),
            }) as Follow
        });
        Followed { follow, end: RunEnd { progress, stopping } }
    }
}

impl RunEnd {
    /// The agreement of the ranks on the last step.
    pub fn stopping(&self) -> Option<Arc<Stopping>> {
        self.stopping.clone()
    }

    /// The first step whose record is not written yet.
    pub fn next(&self) -> usize {
        self.progress.as_ref().map_or(0, |progress| *lock(&progress.next))
    }

    /// Ends the process after the summary if a signal ended the run. After a signal the error of a process, by which it `failed`, is
    /// that the others have ended.
    pub fn if_asked(&self, place: &LaunchMode, failed: bool) {
        let process = matches!(place, LaunchMode::Process(_));
        let left = || interruption::asked().filter(|_| failed && process);
        let Some(signal) = self.stopping.as_ref().and_then(|stop| stop.reached()).or_else(left) else {
            return;
        };
        self.progress.iter().for_each(|progress| progress.end());
        if process {
            if let Some(rank) = self.stopping.as_ref().and_then(|stop| stop.asked_elsewhere()) {
                eprintln!("error: rank {rank}{WAS_ASKED}{}, which ends the run", interruption::name(signal));
            }
            interruption::end_by(signal);
        }
        std::process::exit(128 + signal);
    }
}

/// Lets signals end the run. Returns the agreement of its ranks on the last step; `None` where a signal does not wait for the step, or
/// another program handles signals. `last` is called when the process ends otherwise.
fn heed(config: &Config, place: &LaunchMode, last: impl FnOnce() + Send + 'static) -> Option<Arc<Stopping>> {
    // A program that called this command handles signals itself.
    if invocation::keeper().is_some() {
        return None;
    }
    let (stopping, saves) = (Arc::new(Stopping::of(place)), config.checkpoint.writes());
    // Schedulers announce by SIGUSR1 that they will end a job.
    let more: &[i32] = if saves { &[SIGUSR1] } else { &[] };
    match place {
        LaunchMode::Threads(_) | LaunchMode::Sim(_) => {
            interruption::listen(more);
            interruption::end_a_hang(more, last);
        }
        LaunchMode::Process(_) => {
            let of_run = stopping.clone();
            interruption::before_the_signal_ends(more, move |signal| {
                write_flight_record(&format!("it was asked to end ({signal})"));
                let saves = of_run.begun();
                if !saves {
                    last();
                }
                saves
            });
        }
        LaunchMode::Mpi(..) if saves => interruption::listen(more),
        // mpirun ends the ranks.
        LaunchMode::Mpi(..) | LaunchMode::Joined(_) => {}
    }
    let waits = saves || matches!(place, LaunchMode::Threads(_) | LaunchMode::Sim(_));
    waits.then_some(stopping)
}

impl Progress {
    fn write<R: RecordKind>(&self, steps: &[R]) -> CommandResult {
        steps.iter().try_for_each(|step| self.records.0.record(step, &self.records.1))
    }

    /// Writes a record of the run's progress. A failure to write the file is reported when the run ends.
    fn record(&self, made: &StepMade) {
        if lock(&self.recorded).replace(made.step) == Some(made.step) {
            return;
        }
        let (recorder, stamp) = &self.records;
        let (setup, &StepMade { step, steps, loss, lr, .. }) = (self.setup.clone(), made);
        let samples_per_s = self.rate(made);
        let _ = match self.measured {
            true => {
                let progress = RunProgress::<true> { setup, step, steps, loss, lr, samples_per_s };
                recorder.record(&progress, stamp)
            }
            false => {
                let progress = RunProgress::<false> { setup, step, steps, loss, lr, samples_per_s };
                recorder.record(&progress, stamp)
            }
        };
    }

    /// Writes the summary and the last record of a run that ends early, once.
    fn end(&self) {
        self.summary.call_once(|| {
            let made = *lock(&self.made);
            let newest = |folder: &PathBuf| match checkpoint::latest(folder).ok().flatten() {
                Some(path) => format!("; the newest checkpoint is {}", path.display()),
                None => format!("; no checkpoint is in {}", folder.display()),
            };
            let said = match made.last {
                Some(last) => interrupted(&made, &last, self.rate(&last)),
                None => "interrupted before the end of the first step".into(),
            } + &self.checkpoints.as_ref().map(newest).unwrap_or_default();
            // The error is ignored: the program ends here, and the reader of the text may have closed it.
            let _ = match self.to_stderr {
                true => writeln!(io::stderr(), "{said}"),
                false => writeln!(io::stdout(), "{said}"),
            };
            made.newest().iter().for_each(|last| self.record(last));
        });
    }

    /// Samples per second of a step.
    fn rate(&self, made: &StepMade) -> f64 {
        self.samples / made.seconds.max(1e-12)
    }
}

/// The summary of a run that ends early.
fn interrupted(made: &Made, last: &StepMade, rate: f64) -> String {
    let loss = made.known.zip(made.first).map(|(StepMade { step, loss, .. }, (first, at_first))| {
        format!(": loss {loss:.6} in step {step} ({at_first:.6} in step {first})")
    });
    format!(
        "interrupted after {} of {} steps{}, {} samples/s in the last step",
        last.step + 1,
        last.steps,
        loss.unwrap_or_default(),
        format::rate(rate)
    )
}
