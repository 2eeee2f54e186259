//! The `allfold` command with this crate's parts of training in it:
//! `own-training train --config examples/own-training/spirals.toml --ranks 4`.

use std::process::ExitCode;

fn main() -> ExitCode {
    allfold_experiments::run_with(&[], own_training::PARTS)
}
