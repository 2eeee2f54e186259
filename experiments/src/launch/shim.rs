//! What a rank's process is for its first moment: it asks to die with its launcher, then becomes the rank's program.
//!
//! The request outlives `exec`. It must be made by the process itself, which is why the launcher starts its own program
//! and not the rank's.

use crate::cli::failure::{Failure, Outcome};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The launcher's number, and the rank's command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The launcher's process
    launcher: i32,
    /// The rank's command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes the rank's program.
///
/// # Errors
/// The program cannot be run; exit code 2.
pub fn run(args: &Args) -> Outcome {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(Failure::run)?;
    // It may have died before it could be asked about.
    if getppid() != Pid::from_raw(args.launcher) {
        return Err(Failure::run("the launcher is gone"));
    }
    let Some((program, rest)) = args.command.split_first() else {
        return Err(Failure::usage("no command to run"));
    };
    let error = Command::new(program).args(rest).exec();
    Err(Failure::usage(format!("{}: cannot be run: {error}", program.to_string_lossy())))
}
