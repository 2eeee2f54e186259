//! The `allfold` command.

use allfold_experiments::commands::dispatch;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    match dispatch::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let line = failure.to_string();
            if !line.is_empty() {
                // Whoever would read it may have gone.
                let _ = writeln!(std::io::stderr(), "{line}");
            }
            failure.exit_code()
        }
    }
}
