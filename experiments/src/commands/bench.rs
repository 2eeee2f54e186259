//! `allfold bench`: measures a collective on real data, checks every result, and prints nccl-tests' table.

mod args;
#[cfg_attr(not(feature = "cuda"), path = "bench/no_gpu.rs")]
mod gpu;
mod launched_ranks;
mod limit;
mod nccl_flags;
#[cfg(feature = "cuda")]
mod nccl_json;
mod real;
mod simulated;
mod verdict;

pub(crate) use args::Args;

use crate::call::plot;
use crate::measure::bench::Bench;
use crate::measure::ranks::{Timing, fits};
use crate::predict::machine::SimulatedMachine;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::launched as launcher;
use allfold_cli::output::{self, RunOutput};
use allfold_collectives::environment::Environment;
use allfold_report::records::MeasuredCollective;
use args::{Backend, Clock};

/// Measures the collective at every size by every algorithm, prints a table for each and draws the plot.
pub fn run(args: &Args) -> CommandResult {
    let sweeps = args.sweep.each()?;
    let each: Vec<Args> = sweeps.into_iter().map(|sweep| Args { sweep, ..args.clone() }).collect();
    if each.len() > 1 && (args.backend == Backend::Mpi || launched()?) {
        return Err(CommandError::usage(
            "several algorithms need all ranks in one process; give one algorithm to each launched run",
        ));
    }
    // Everything is checked before the first algorithm runs.
    let benches = each.iter().map(|args| Ok((args, bench(args)?))).collect::<CommandResult<Vec<_>>>()?;
    if args.plot.is_some() && args.backend.clock() == Clock::Virtual {
        return Err(CommandError::usage(
            "--plot draws measured sizes; `allfold simulate --plot` draws simulated ones",
        ));
    }
    if args.plot.is_some() {
        each.iter().try_for_each(|args| plot::can_draw(&args.sweep.sizes()?))?;
    }
    args.plot.iter().try_for_each(|path| output::writable(path))?;
    let mut records = Vec::new();
    for (args, bench) in benches {
        records.extend(measured(args, bench)?);
    }
    match &args.plot {
        // Of several processes, only the one with the records draws the plot.
        Some(path) if !records.is_empty() => {
            let mut output = RunOutput::open(None, None)?;
            plot::measured(path, &records, &mut output)?;
            output.close()
        }
        _ => Ok(()),
    }
}

/// Whether a launcher has started this process as one of several.
fn launched() -> CommandResult<bool> {
    let found = Environment::detect().map_err(CommandError::usage)?;
    Ok(found.is_some_and(|found| found.world_size > 1))
}

/// The benchmark of one algorithm, after the checks of its flags.
fn bench(args: &Args) -> CommandResult<Bench> {
    let bench = Bench {
        path: args.path()?,
        choice: args.sweep.choice()?,
        timing: Timing {
            iterations: args.iterations,
            warmup: args.warmup,
            check: args.check == 1,
            seed: args.seed,
            virtual_time: args.backend.clock() == Clock::Virtual,
            registered: args.register != Some(0),
        },
    };
    args.sweep.sizes()?.iter().try_for_each(|&size| fits(&bench.choice, size))?;
    args.check()?;
    let instead = match args.backend {
        Backend::Shm | Backend::Tcp | Backend::Mpi | Backend::Nccl => return Ok(bench),
        Backend::Device => "use --backend nccl, whose ranks are the launcher's processes",
        Backend::Threads | Backend::Sim => {
            "use --backend shm or tcp, whose ranks are the launcher's processes"
        }
    };
    launcher::alone("threads, device and sim", instead)?;
    Ok(bench)
}

/// Measures one algorithm. Returns the records of a real clock; on virtual time there are none.
fn measured(args: &Args, bench: Bench) -> CommandResult<Vec<MeasuredCollective>> {
    let sizes = args.sweep.sizes()?;
    match args.backend.clock() {
        Clock::Gpus(backend) => gpu::run(args, backend, &bench, &sizes),
        Clock::HostBackend(host) => real::run(args, host, bench, &sizes),
        Clock::Virtual => {
            let machine =
                SimulatedMachine::named(args.topology.as_deref().unwrap_or("switch"), args.sweep.ranks)?;
            let mut output = RunOutput::open(args.common.json.as_deref(), Some(args.seed))?;
            let checked = simulated::run(args, &bench, &machine, &sizes, &mut output)?;
            output.close()?;
            checked.map(|()| Vec::new())
        }
    }
}
