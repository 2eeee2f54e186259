//! The `allfold` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    allfold_experiments::run(&[])
}
