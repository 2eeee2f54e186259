//! The `allfold` command: it proves, times, measures and trains, and leaves records from which tables, plots and the
//! report are made.
//!
//! ```text
//! main -> commands -> { scaling -> training, predict, measure } -> call -> cli
//!            |
//!            +-> output -> allfold_report: records -> { tables, plots } -> report
//! ```
//!
//! A command reads its flags, runs, prints a table and hands records to its [output](allfold_cli::output). What is drawn is
//! drawn from [records](allfold_report::records) alone, where measured and simulated are different types.
//!
//! The command is a library so that a program can add algorithms and parts of training of its own to it ([`run`], [`run_with`]) and so
//! that programs in other languages can call it ([`run_words`]). A program can also collect the output of a command:
//!
//! ```
//! use allfold_cli::invocation::keeping;
//! use allfold_experiments::commands::dispatch;
//!
//! let words = "show all_reduce --algo ring --ranks 2".split(' ').map(Into::into).collect();
//! let (ended, kept) = keeping(words, dispatch::run);
//! assert!(ended.is_ok());
//! let picture = "\
//! round  rank 0    rank 1
//!     0  0 +> 1    1 +> 0
//!     1  1 -> 1    0 -> 0
//! ";
//! assert!(kept.text.contains(picture));
//! ```

pub mod call;
pub mod commands;
pub mod faults;
pub mod measure;
pub mod predict;
pub mod scaling;
pub mod training;

use allfold_cli::error::{CommandError, CommandResult};
use allfold_collectives::registry::{self, Algorithm};
use allfold_trainer::own::OwnParts;
use rustix::process::{Resource, getrlimit};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// Runs the whole `allfold` command with a program's own algorithms in addition to those of the table. Returns the exit code for
/// `main`. Every command that takes `--algo` takes the names of the own algorithms.
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
    say_in_one_line_that_no_thread_starts();
    let added = registry::add(own).map_err(CommandError::usage);
    let added = added.and_then(|()| allfold_trainer::own::add(training).map_err(CommandError::usage));
    ExitCode::from(ended(on_enough_stack(|| added.and_then(|()| commands::dispatch::run()))))
}

/// Runs the command with these words after its name, for a program in another language. Prints, and returns the exit code.
/// `program` is the command that starts such a process again: a program and its first arguments.
pub fn run_words(words: Vec<OsString>, program: Vec<OsString>) -> u8 {
    allfold_launch::start_by(program);
    ended(on_enough_stack(|| allfold_cli::invocation::with_words(words, commands::dispatch::run)))
}

/// Bytes of stack that a command may use: as many as the first thread of a program usually has.
const STACK: usize = 8 << 20;

/// Runs a command, on a thread of its own where the stack of the first thread is limited to less than [`STACK`] (`ulimit -s`).
fn on_enough_stack(run: impl FnOnce() -> CommandResult + Send) -> CommandResult {
    if getrlimit(Resource::Stack).current.is_none_or(|bytes| bytes >= STACK as u64) {
        return run();
    }
    std::thread::scope(|threads| {
        let thread = std::thread::Builder::new().name("main".into()).stack_size(STACK);
        let thread = thread.spawn_scoped(threads, run).map_err(CommandError::run)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Begins the log of this project's crates on standard error, as `ALLFOLD_LOG` says, for a program that runs no command.
///
/// # Errors
/// The variable names no level; the text lists the levels.
pub fn begin_log() -> Result<(), String> {
    allfold_cli::log::begin(0, false).map_err(|error| error.to_string())
}

/// What the standard library, the runtime of connections and thread pools say when they panic because the system starts no thread.
const NO_THREAD: [&str; 3] =
    ["failed to spawn thread", "OS can't spawn worker thread", "ThreadPoolBuildError"];

/// Ends the process with one line where a library panics because the system starts no further thread.
fn say_in_one_line_that_no_thread_starts() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default();
        if !NO_THREAD.iter().any(|known| text.contains(known)) {
            return usual(panic);
        }
        let _ = writeln!(
            std::io::stderr(),
            "error: this process may start no further thread; raise `ulimit -u` or pids.max of its control group, or run fewer ranks \
             and threads"
        );
        std::process::exit(1);
    }));
}

/// Prints why a command ended early. Returns the exit code.
fn ended(result: CommandResult) -> u8 {
    let Err(error) = result else { return 0 };
    let line = error.to_string();
    if !line.is_empty() {
        // The error is ignored: the reader of standard error may have closed it.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    error.code()
}

#[cfg(test)]
mod tests {
    use crate::commands::dispatch;
    use allfold_cli::invocation::{Kept, keeping};
    use std::ffi::OsString;

    #[test]
    fn a_program_gets_the_text_and_the_records_of_a_command() {
        let call = |words: &[&str]| keeping(words.iter().map(OsString::from).collect(), dispatch::run);
        let (result, kept) = call(&["verify", "all_reduce", "--algo", "ring", "--ranks", "4"]);
        assert_eq!(result, Ok(()));
        assert!(kept.text.contains("ring"), "{}", kept.text);
        let first: serde_json::Value = serde_json::from_str(kept.records.lines().next().unwrap()).unwrap();
        assert_eq!(first["command"], "allfold verify all_reduce --algo ring --ranks 4");
        let (result, kept) = call(&["verify", "all_reduced"]);
        assert!(result.unwrap_err().to_string().contains("all_reduce"));
        assert_eq!(kept, Kept::default());
    }
}
