//! Where the ranks of a measured sweep run: threads of this process, or processes that a launcher started.

use super::args::{Args, HostBackend, Mode};
use crate::call::plan::Choice;
use crate::measure::bench::{Path, RunsOn};
#[cfg(feature = "cuda")]
use crate::measure::nccl::GpuRanks;
use crate::training::launch_mode;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::names;
use allfold_collectives::environment::Environment;
use allfold_collectives::tcp::{Secret, Security};
use allfold_collectives::{Communicator, Error, Joining, World};
use allfold_report::format::counted;

/// The ranks of a sweep, and their description in the table.
pub struct LaunchedRanks {
    /// The threads or the process that the ranks run on.
    pub runs_on: RunsOn,
    /// The description of the ranks, for example `on threads, fused`.
    pub how: String,
}

/// Starts the ranks that the flags describe, or joins the ranks of a launcher.
///
/// # Errors
/// A launcher that started another number of ranks; ranks that cannot connect, or that need to share memory and do not.
pub fn ranks(args: &Args, host: HostBackend, choice: &Choice) -> CommandResult<LaunchedRanks> {
    let path = args.path()?;
    let launched = match host {
        HostBackend::Shm | HostBackend::Tcp => Environment::detect().map_err(CommandError::usage)?,
        HostBackend::Threads | HostBackend::Mpi => None,
    };
    // An interactive shell or a job of a single process has started no other ranks.
    let alone = |found: &Environment| found.world_size == 1 && args.sweep.ranks > 1;
    let launched = launched.filter(|found| host == HostBackend::Tcp || !alone(found));
    match (host, launched) {
        (HostBackend::Mpi, _) => {
            let comm = launch_mode::over_mpi(path == Path::Native)?;
            process(args, choice, comm, format!("as processes of an MPI job, {}", path.name()))
        }
        (_, Some(launched)) => {
            let joining = Joining { share: host == HostBackend::Shm, ..Joining::from_env()? };
            let comm = Communicator::join(&launched, joining)?;
            if host == HostBackend::Shm
                && args.sweep.ranks > 1
                && comm.size() == args.sweep.ranks
                && !comm.shares_memory()
            {
                return Err(CommandError::run(
                    "the ranks of --backend shm must be on one host, and these are not",
                ));
            }
            let how = match host {
                HostBackend::Shm => format!("as processes that share a segment, {}", buffers(args)),
                _ => "as processes, over TCP".into(),
            };
            process(args, choice, comm, how)
        }
        (HostBackend::Threads, None) => {
            let world = World::threads(args.sweep.ranks);
            let world = if path == Path::Messages { world.messages() } else { world };
            threads(choice, world, format!("on threads, {}", path.name()))
        }
        (HostBackend::Shm, None) => {
            let buffers = buffers(args);
            let how = format!("as threads of one process that share a segment, as processes do, {buffers}");
            threads(choice, World::shm(args.sweep.ranks), how)
        }
        (HostBackend::Tcp, None) => over_loopback(args, choice),
    }
}

/// The ranks on GPUs: the processes of a launcher, of which this is one, or threads.
///
/// # Errors
/// Those of [`ranks`].
#[cfg(feature = "cuda")]
pub fn on_gpus(ranks: u32) -> CommandResult<GpuRanks> {
    let launched = Environment::detect().map_err(CommandError::usage)?;
    let Some(launched) = launched.filter(|found| found.world_size > 1 || ranks == 1) else {
        return Ok(GpuRanks::Threads(ranks));
    };
    let comm = Communicator::join(&launched, Joining::from_env()?)?;
    match comm.size() == ranks {
        true => Ok(GpuRanks::Process(Box::new(comm), launched.local_rank)),
        false => Err(names::other_ranks(ranks, launched.launcher, comm.size())),
    }
}

fn threads(choice: &Choice, world: impl Into<World>, how: String) -> CommandResult<LaunchedRanks> {
    let world = world.into().deadline(launch_mode::operation_deadline()?);
    Ok(LaunchedRanks { runs_on: RunsOn::World(choice.on(world)), how })
}

fn process(args: &Args, choice: &Choice, comm: Communicator, how: String) -> CommandResult<LaunchedRanks> {
    if comm.size() != args.sweep.ranks {
        return Err(names::other_ranks(args.sweep.ranks, "the launcher", comm.size()));
    }
    Ok(LaunchedRanks { runs_on: RunsOn::Process(choice.within(comm)?), how })
}

/// Ranks as threads of this process that exchange messages over loopback sockets.
fn over_loopback(args: &Args, choice: &Choice) -> CommandResult<LaunchedRanks> {
    let secret = || match std::env::var_os("ALLFOLD_SECRET_FILE") {
        Some(path) => Secret::read(path.as_ref()).map_err(CommandError::usage),
        None => Secret::random().map_err(|error| CommandError::from(Error::from(error))),
    };
    let security = match args.security.unwrap_or(Mode::Loopback) {
        Mode::Loopback => Security::Loopback,
        Mode::Tls => Security::Tls(secret()?),
        Mode::TrustedFabric => Security::TrustedFabric(secret()?),
    };
    let how = format!("as threads of one process, over loopback TCP ({})", security.name());
    let world = World::tcp(args.sweep.ranks).security(security);
    let (world, how) = match args.ranks_per_host {
        Some(each) => {
            let hosts = format!("{how}, as hosts of {}", counted(each as usize, "rank"));
            (world.ranks_per_host(each), hosts)
        }
        None => (world, how),
    };
    threads(choice, world, how)
}

/// The kind of buffers, as the table shows it.
fn buffers(args: &Args) -> &'static str {
    if args.register != Some(0) { "in registered buffers" } else { "through copies of buffers" }
}
