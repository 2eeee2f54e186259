//! The `allfold` command.

use allfold_experiments::cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let line = failure.to_string();
            if !line.is_empty() {
                eprintln!("{line}");
            }
            failure.exit_code()
        }
    }
}
