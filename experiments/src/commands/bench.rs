//! `allfold bench`: measures a collective on real data, checks every result, and prints nccl-tests' table.

mod args;
#[cfg_attr(not(feature = "cuda"), path = "bench/no_gpu.rs")]
mod gpu;
mod launched_ranks;
mod limit;
mod real;
mod simulated;
mod verdict;

pub(crate) use args::Args;

use crate::cli::error::CommandResult;
use crate::cli::output::RunOutput;
use crate::measure::bench::Bench;
use crate::measure::ranks::{Timing, fits};
use crate::predict::machine::SimulatedMachine;
use args::Clock;

/// Measures the collective at every size and prints the table.
pub fn run(args: &Args) -> CommandResult {
    let clock = args.backend.clock();
    let bench = Bench {
        path: args.path()?,
        choice: args.sweep.choice()?,
        timing: Timing {
            iterations: args.iterations,
            warmup: args.warmup,
            check: args.check == 1,
            seed: args.seed,
            virtual_time: clock == Clock::Virtual,
            registered: args.register == 1,
        },
    };
    let sizes = args.sweep.sizes()?;
    sizes.iter().try_for_each(|&size| fits(&bench.choice, size))?;
    args.check()?;
    match clock {
        Clock::Gpus(backend) => gpu::run(args, backend, &bench, &sizes),
        Clock::HostBackend(host) => real::run(args, host, bench, &sizes),
        Clock::Virtual => {
            let machine =
                SimulatedMachine::named(args.topology.as_deref().unwrap_or("switch"), args.sweep.ranks)?;
            let mut output = RunOutput::open(args.common.json.as_deref(), Some(args.seed))?;
            let checked = simulated::run(args, &bench, &machine, &sizes, &mut output)?;
            output.close()?;
            checked
        }
    }
}
