//! The `allfold` command with this crate's algorithm in it: `own-allfold simulate all_gather --algo neighbor_exchange --ranks 64`.

use std::process::ExitCode;

fn main() -> ExitCode {
    allfold_experiments::run(&own_algorithm::ALGORITHMS)
}
