//! A training run while it goes on: records of progress, and a summary when the user interrupts the run.

use crate::cli::interruption::Interruption;
use crate::cli::recorder::Recorder;
use allfold_report::format;
use allfold_report::records::{MeasuredProgress, Setup, SimulatedProgress, Stamp};
use allfold_trainer::StepReport;
use std::io::{self, Write};
use std::process::exit;
use std::time::{Duration, Instant};

/// The time between two records of progress.
const BETWEEN: Duration = Duration::from_secs(2);

/// Follows the steps of rank 0.
pub struct Live {
    /// The recorder, and the origin of the records.
    pub records: (Recorder, Stamp),
    /// The run's setup.
    pub setup: Setup,
    /// Whether the times are of a real clock.
    pub measured: bool,
    /// Samples of all ranks in a step.
    pub samples: f64,
    /// The signals that end the run; `None` where another program decides.
    pub interruption: Option<Interruption>,
    /// Whether text goes to standard error, because records go to standard output.
    pub to_stderr: bool,
    /// When the last record was written; before the first record, when the run began.
    pub last: Instant,
    /// The step and the loss of the first report.
    pub first: Option<(u64, f64)>,
}

impl Live {
    /// A step is done: writes a record if one is due, and ends the program if it was interrupted.
    pub fn step(&mut self, report: &StepReport<'_>) {
        let first = *self.first.get_or_insert((report.step, report.loss));
        if self.last.elapsed() >= BETWEEN {
            self.last += self.last.elapsed();
            self.record(report);
        }
        if let Some(code) = self.interruption.as_ref().and_then(Interruption::code) {
            self.record(report);
            let said = interrupted(first, report, self.samples);
            // The error is ignored: the program ends here, and the reader of the text may have closed it.
            let _ = if self.to_stderr {
                writeln!(io::stderr(), "{said}")
            } else {
                writeln!(io::stdout(), "{said}")
            };
            exit(code);
        }
    }

    /// Writes how far the run is. A failure to write the file is reported when the run ends.
    fn record(&self, report: &StepReport<'_>) {
        let (recorder, stamp) = &self.records;
        let (setup, step, steps, loss) = (self.setup.clone(), report.step, report.steps, report.loss);
        let samples_per_s = self.samples / report.time.total().as_secs().max(1e-12);
        let _ = match self.measured {
            true => recorder.record(&MeasuredProgress { setup, step, steps, loss, samples_per_s }, stamp),
            false => recorder.record(&SimulatedProgress { setup, step, steps, loss, samples_per_s }, stamp),
        };
    }
}

/// The summary of a run that ends early.
fn interrupted(first: (u64, f64), report: &StepReport<'_>, samples: f64) -> String {
    let rate = samples / report.time.total().as_secs().max(1e-12);
    format!(
        "interrupted after step {} of {}: loss of rank 0 {:.6} (step {}: {:.6}), {} samples/s in the last step",
        report.step + 1,
        report.steps,
        report.loss,
        first.0,
        first.1,
        format::number(rate)
    )
}
