//! A training run in progress: records of its progress, and a summary when the user interrupts the run.
//!
//! ```text
//! ranks on threads or on virtual time   the step is ended, then rank 0 writes the summary and ends the program; if the ranks hang, a
//!                                       thread does
//! a launcher's rank 0                   a thread writes the flight record and the summary of the last step at once: the step cannot be
//!                                       ended, because the signal ends the other ranks as well
//! ```

use super::Args;
use crate::training::launch_mode::LaunchMode;
use crate::training::records::setup;
use allfold_base::lock;
use allfold_cli::error::CommandResult;
use allfold_cli::interruption::{self, Interruption};
use allfold_cli::invocation;
use allfold_cli::output::RunOutput;
use allfold_cli::recorder::Recorder;
use allfold_collectives::write_flight_record;
use allfold_report::format;
use allfold_report::records::{MeasuredProgress, Setup, SimulatedProgress, Stamp};
use allfold_trainer::{Config, StepReport};
use std::io::{self, Write};
use std::path::Path;
use std::process::exit;
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// The time between two records of progress.
const BETWEEN: Duration = Duration::from_secs(2);

/// Follows the steps of rank 0.
pub struct Live {
    progress: Arc<Progress>,
    /// The signals that end the run after a step; `None` where a signal does not wait for the step, or another program decides.
    interruption: Option<Interruption>,
    /// When the last record was written; before the first record, when the run began.
    last: Instant,
    /// The step of the last record.
    recorded: Option<u64>,
}

/// A run that ends before its last step, as a run that diverges does, leaves a record of the last step that it made.
impl Drop for Live {
    fn drop(&mut self) {
        let last = lock(&self.progress.made).map(|[_, last]| last);
        if let Some(last) = last.filter(|last| last.step + 1 < last.steps && self.recorded != Some(last.step))
        {
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
    /// The first and the last step that this process has made.
    made: Mutex<Option<[StepMade; 2]>>,
    /// Done once the summary is written.
    summary: Once,
}

/// A step that was made.
#[derive(Clone, Copy)]
struct StepMade {
    step: u64,
    /// The steps of the run.
    steps: u64,
    loss: f64,
    lr: f64,
    seconds: f64,
}

impl Live {
    /// Follows a run for its records and for an interruption.
    ///
    /// # Errors
    /// A device that is missing.
    #[allow(
        clippy::disallowed_methods,
        reason = "records of progress are written every few seconds of real time"
    )]
    pub fn of(args: &Args, config: &Config, place: &LaunchMode, output: &RunOutput) -> CommandResult<Live> {
        let (backend, measured) = place.kind();
        let progress = Arc::new(Progress {
            records: output.recorder(),
            setup: setup(config, backend, &place.device(config)?, place.ranks()),
            measured,
            samples: config.training.batch as f64 * f64::from(place.ranks()),
            to_stderr: args.common.json.as_deref() == Some(Path::new("-")),
            made: Mutex::new(None),
            summary: Once::new(),
        });
        let of_run = progress.clone();
        // A program that called this command handles signals itself, and so does mpirun.
        let interruption = match place {
            _ if invocation::keeper().is_some() => None,
            LaunchMode::Threads(_) | LaunchMode::Sim(_) => {
                let interruption = Interruption::listen();
                interruption.end_a_hang(move || of_run.end());
                Some(interruption)
            }
            LaunchMode::Process(_) => {
                interruption::before_the_signal_ends(move |signal| {
                    write_record(signal);
                    of_run.end();
                });
                None
            }
            LaunchMode::Mpi(..) => None,
        };
        Ok(Live { progress, interruption, last: Instant::now(), recorded: None })
    }

    /// Lets a rank that does not report, a process of a launcher's job, write its flight record when a signal ends it.
    pub fn silent(place: &LaunchMode) {
        if matches!(place, LaunchMode::Process(_)) && invocation::keeper().is_none() {
            interruption::before_the_signal_ends(write_record);
        }
    }

    /// A step is done: writes a record if one is due, and ends the program if it was interrupted.
    pub fn step(&mut self, report: &StepReport<'_>) {
        let made = StepMade {
            step: report.step,
            steps: report.steps,
            loss: report.loss,
            lr: report.lr,
            seconds: report.time.total().as_secs(),
        };
        self.progress.add(made);
        if self.last.elapsed() >= BETWEEN {
            self.last += self.last.elapsed();
            self.progress.record(&made);
            self.recorded = Some(made.step);
        }
        if let Some(code) = self.interruption.as_ref().and_then(Interruption::code) {
            self.progress.end();
            exit(code);
        }
    }
}

impl Progress {
    fn add(&self, step: StepMade) {
        let mut made = lock(&self.made);
        let first = made.map_or(step, |[first, _]| first);
        *made = Some([first, step]);
    }

    /// Writes a record of the run's progress. A failure to write the file is reported when the run ends.
    fn record(&self, made: &StepMade) {
        let (recorder, stamp) = &self.records;
        let (setup, &StepMade { step, steps, loss, lr, .. }) = (self.setup.clone(), made);
        let samples_per_s = self.rate(made);
        let _ = match self.measured {
            true => recorder.record(&MeasuredProgress { setup, step, steps, loss, lr, samples_per_s }, stamp),
            false => {
                recorder.record(&SimulatedProgress { setup, step, steps, loss, lr, samples_per_s }, stamp)
            }
        };
    }

    /// Writes the summary and the last record of a run that ends early, once.
    fn end(&self) {
        self.summary.call_once(|| {
            let made = *lock(&self.made);
            let said = match made {
                Some([first, last]) => interrupted(&first, &last, self.rate(&last)),
                None => "interrupted before the end of the first step".into(),
            };
            // The error is ignored: the program ends here, and the reader of the text may have closed it.
            let _ = match self.to_stderr {
                true => writeln!(io::stderr(), "{said}"),
                false => writeln!(io::stdout(), "{said}"),
            };
            made.iter().for_each(|[_, last]| self.record(last));
        });
    }

    /// Samples per second of a step.
    fn rate(&self, made: &StepMade) -> f64 {
        self.samples / made.seconds.max(1e-12)
    }
}

/// Writes the flight record of a rank that a signal ends.
fn write_record(signal: &str) {
    write_flight_record(&format!("it was asked to end ({signal})"));
}

/// The summary of a run that ends early.
fn interrupted(first: &StepMade, last: &StepMade, rate: f64) -> String {
    format!(
        "interrupted after step {} of {}: loss of rank 0 {:.6} (step {}: {:.6}), {} samples/s in the last step",
        last.step + 1,
        last.steps,
        last.loss,
        first.step,
        first.loss,
        format::number(rate)
    )
}
