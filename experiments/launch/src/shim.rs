//! The first program of a rank's process: it asks the system to kill it when its launcher dies, then becomes the rank's program.
//!
//! The request outlives `exec`. It must be made by the process itself, which is why the launcher starts its own program
//! and not the rank's.

use crate::error::{Error, LaunchResult};
use crate::system;
use rustix::process::{Pid, Signal, getppid};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Replaces this process by the rank's program.
///
/// # Errors
/// The launcher, whose process has the number `launcher`, has ended; the program cannot be run.
pub fn run(launcher: i32, command: &[OsString]) -> LaunchResult {
    system::at_parent_s_end(Signal::KILL).map_err(Error::run)?;
    // The launcher may have died before this process asked to die with it.
    if getppid() != Pid::from_raw(launcher) {
        return Err(Error::run("the launcher has ended"));
    }
    let Some((program, rest)) = command.split_first() else {
        return Err(Error::usage("no command to run"));
    };
    let error = Command::new(program).args(rest).exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    Err(Error::Rank { text: format!("{}: cannot be run: {error}", program.to_string_lossy()), code })
}
