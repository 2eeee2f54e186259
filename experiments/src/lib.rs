//! The `allfold` command: it proves, times, measures and trains, and leaves records from which tables, plots and the
//! report are made.
//!
//! ```text
//! main -> commands -> { scaling -> training, predict, measure } -> call -> cli
//!            |
//!            +-> output -> allfold_report: records -> { tables, plots } -> report
//! ```
//!
//! A command reads its flags, runs, prints a table and hands records to its [output](cli::output). What is drawn is
//! drawn from [records](allfold_report::records) alone, where measured and simulated are different types.

pub mod call;
pub mod cli;
pub mod commands;
pub mod datasets;
pub mod faults;
pub mod measure;
pub mod predict;
pub mod scaling;
pub mod training;

use allfold_collectives::registry::{self, Algorithm};
use allfold_trainer::own::OwnParts;
use std::io::Write;
use std::process::ExitCode;

/// The whole `allfold` command, with a program's own algorithms beside those of the table: what `main` of a program of your own
/// returns. Every command that takes `--algo` knows them by name.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     allfold_experiments::run(&[])
/// }
/// ```
pub fn run(own: &'static [Algorithm]) -> ExitCode {
    run_with(own, OwnParts::NONE)
}

/// [`run`] with the program's own parts of training too: models, optimisers, hooks, strategies and datasets.
pub fn run_with(own: &'static [Algorithm], training: OwnParts) -> ExitCode {
    let added = registry::add(own).map_err(cli::error::CommandError::usage);
    let added =
        added.and_then(|()| allfold_trainer::own::add(training).map_err(cli::error::CommandError::usage));
    let Err(error) = added.and_then(|()| commands::dispatch::run()) else {
        return ExitCode::SUCCESS;
    };
    let line = error.to_string();
    if !line.is_empty() {
        // The reader of standard error may have gone.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    error.exit_code()
}
