//! Commands under a launcher that has started several processes: which commands run as ranks of one job, and which would only run
//! once in each process.

use super::error::{CommandError, CommandResult};
use allfold_collectives::environment::Environment;

/// Commands whose processes are ranks of one job.
const RANKS: [&str; 3] = ["bench", "scale", "train"];

/// Commands that may run in every process: they report on the process's host, or serve a launcher.
const ANYWHERE: [&str; 4] = ["doctor", "launch", "launch-guard", "launch-rank"];

/// Refuses a command that runs in one process, if a launcher has started several.
///
/// # Errors
/// `command` runs in one process, and a launcher has started several.
pub fn here(command: &str) -> CommandResult {
    // Environment variables that make no sense are reported by the commands that need them.
    match Environment::detect() {
        Ok(Some(found)) => fits(command, found.world_size),
        _ => Ok(()),
    }
}

/// [`here`] for a number of processes.
///
/// # Errors
/// As [`here`].
pub fn fits(command: &str, processes: u32) -> CommandResult {
    if processes <= 1 || RANKS.contains(&command) || ANYWHERE.contains(&command) {
        return Ok(());
    }
    Err(CommandError::usage(format!(
        "`{command}` runs in one process, and a launcher that starts {processes} would run it {processes} times: run it without \
         the launcher"
    )))
}

/// The number of ranks that a launcher has started, this process among them, as a flag's default. `None` without a launcher.
pub fn ranks() -> Option<&'static str> {
    use std::sync::OnceLock;
    static RANKS: OnceLock<Option<String>> = OnceLock::new();
    let found = RANKS.get_or_init(|| Some(Environment::detect().ok()??.world_size.to_string()));
    found.as_deref()
}

/// Refuses to run all ranks in this process, as the backends `which` do, if a launcher has started several processes, each of which
/// would run all ranks. `instead` says what would be right.
///
/// # Errors
/// A launcher has started several processes.
pub fn alone(which: &str, instead: &str) -> CommandResult {
    match Environment::detect() {
        Ok(Some(found)) if found.world_size > 1 => Err(CommandError::usage(format!(
            "--backend {which} run all ranks in one process, but {} has started {} processes: {instead}",
            found.launcher, found.world_size
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ranks_and_what_is_of_a_host_runs_more_than_once() {
        for command in ["train", "bench", "scale", "doctor", "launch-rank"] {
            assert_eq!(fits(command, 8), Ok(()), "{command}");
        }
        for command in ["verify", "simulate", "report", "data", "scale workload"] {
            assert_eq!(fits(command, 1), Ok(()), "{command}");
            let said = fits(command, 8).unwrap_err().to_string();
            assert!(
                said.contains(&format!("`{command}` runs in one process")) && said.contains("8 times"),
                "{said}"
            );
        }
    }
}
