//! The part of `validate` that compares predicted steps of large models with published rows.
//!
//! ```text
//! --spec-only                  parameters that ship; nothing of the system is known (the default)
//! --with-one-row               the first usable row of each system is known
//! --leave-one-system-out       every system from a fit to all the others, or every model; both may know one row
//! ```

mod tables;

use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_cli::progress;
use allfold_large_models::known::{ModelLeftOut, predict_all};
use allfold_large_models::rows::{self, LeftOutRow, RowsFile};
use allfold_large_models::score::PredictedRow;
use allfold_report::records::ValidatedTraining;
use std::path::PathBuf;

/// Flags of rows of training alone.
#[derive(clap::Args, Debug)]
pub(super) struct TrainingArgs {
    /// Predict rows of training from the parameters that ship, without any row of their systems [default]
    #[arg(long, conflicts_with_all = ["with_one_row", "leave_one_system_out", "leave_one_model_out"])]
    spec_only: bool,
    /// Predict rows of training with the first usable row of their system known
    #[arg(long)]
    with_one_row: bool,
    /// Predict every model's rows of training from a fit to all other models
    #[arg(long, conflicts_with = "leave_one_system_out")]
    leave_one_model_out: bool,
}

impl TrainingArgs {
    /// The first flag that was given.
    fn given(&self) -> Option<&'static str> {
        [
            (self.spec_only, "--spec-only"),
            (self.with_one_row, "--with-one-row"),
            (self.leave_one_model_out, "--leave-one-model-out"),
        ]
        .into_iter()
        .find_map(|(given, flag)| given.then_some(flag))
    }

    /// Refuses flags that cannot apply to the given files; `of_runs`: a flag that is for runs of collectives alone. Runs of collectives
    /// beside rows of training for which a flag was given are left out; returns whether they are.
    pub(super) fn check(
        &self,
        of_runs: Option<&str>,
        rows: bool,
        runs: bool,
        output: &mut RunOutput,
    ) -> CommandResult<bool> {
        if let Some(flag) = of_runs.filter(|_| rows) {
            return Err(CommandError::usage(format!(
                "{flag} is for runs of collectives, and rows of training were given; give each kind in a call of its own"
            )));
        }
        match self.given() {
            Some(flag) if !rows => Err(CommandError::usage(format!(
                "{flag} is for rows of training, and the files have none; leave the flag out"
            ))),
            Some(flag) if runs => {
                output.say(format!(
                    "left out: all runs of collectives, since {flag} is for rows of training"
                ))?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// Reads the files, predicts and scores their rows. `systems_out`: with each system left out of the fit; `every_row`: prints all.
pub(super) fn run(
    args: &TrainingArgs,
    [systems_out, every_row]: [bool; 2],
    files: &[PathBuf],
    output: &mut RunOutput,
) -> CommandResult {
    let mut read = RowsFile::default();
    for file in files {
        match rows::read(file) {
            Ok(found) => {
                read.rows.extend(found.rows);
                read.left_out.extend(found.left_out);
            }
            Err(error) if files.len() > 1 => output.say(format!("left out: {error}"))?,
            Err(error) => return Err(CommandError::usage(error)),
        }
    }
    for row in read.left_out.iter().filter(|row| row.wrong && !row.suspect) {
        output.say(format!("left out: {}, row {}: {}", row.run, row.row, row.why))?;
    }
    if read.rows.is_empty() {
        let why = read.left_out.first().map_or_else(
            || "the files have no rows".to_string(),
            |LeftOutRow { run, row, why, .. }| format!("{run}, row {row}: {why}"),
        );
        return Err(CommandError::usage(format!("every row was left out: {why}")));
    }
    let left_out = match (systems_out, args.leave_one_model_out) {
        (true, _) => Some(ModelLeftOut::System),
        (_, true) => Some(ModelLeftOut::Model),
        _ => None,
    };
    let fitting = progress::spinner("predicting steps");
    let found = predict_all(&read.rows, left_out, args.with_one_row).map_err(CommandError::usage)?;
    drop(fitting);
    let (recorder, mut stamp) = output.recorder();
    for row in &found {
        recorder.record(&record(row, args.with_one_row), &stamp)?;
        // The command names every file: the first record alone has it.
        stamp.command.clear();
    }
    output.say(tables::report(&found, &read.left_out, every_row))
}

fn record(found: &PredictedRow<'_>, knows: bool) -> ValidatedTraining {
    let row = found.row;
    let timed = |seconds: f64| row.step_s.map(|_| seconds);
    let [low, high] = found.range80_s.map(timed);
    let [low95, high95] = found.range95_s.map(timed);
    ValidatedTraining {
        system: row.system.clone(),
        model: row.job.model.name.clone(),
        gpus: row.job.layout.gpus,
        run: row.run.clone(),
        row: row.row as u64,
        framework: format!("{:?}", row.job.framework),
        mixture: found.is_mixture(),
        measured_step_s: row.step_s,
        predicted_step_s: timed(found.step_s),
        low_s: low,
        high_s: high,
        low95_s: low95,
        high95_s: high95,
        memory_gb: row.memory_gb,
        predicted_memory_gb: found.memory_gb,
        fits: found.fits >= 0.5,
        fit_probability: found.fits,
        out_of_memory: row.out_of_memory,
        fit: if knows { "system" } else { "spec" }.into(),
        known: found.known,
        suspect: row.suspect,
    }
}
