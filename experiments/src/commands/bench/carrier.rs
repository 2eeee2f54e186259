//! Where the ranks of a measured sweep are: threads of this process, or processes that were started.

use super::args::{Args, Host, Mode};
use crate::call::plan::Choice;
use crate::cli::failure::{Failure, Outcome};
use crate::measure::bench::{Carrier, Path};
use crate::training::place;
use allfold_collectives::environment::Environment;
use allfold_collectives::tcp::{Secret, Security};
use allfold_collectives::{Communicator, Error, Joining, World};

/// The ranks, and how the table says where they are.
pub struct Ranks {
    /// The ranks.
    pub carrier: Carrier,
    /// Such as `on threads, fused`.
    pub how: String,
}

/// The ranks that the flags ask for, started or joined.
///
/// # Errors
/// A launcher that started another number of ranks; ranks that cannot meet, or share no memory where they must.
pub fn ranks(args: &Args, host: Host, choice: &Choice) -> Outcome<Ranks> {
    let path = args.path()?;
    let launched = match host {
        Host::Shm | Host::Tcp => Environment::detect().map_err(Failure::usage)?,
        Host::Threads | Host::Mpi => None,
    };
    match (host, launched) {
        (Host::Mpi, _) => {
            let comm = place::over_mpi(path == Path::Native)?;
            process(args, choice, comm, format!("as processes of an MPI job, {}", path.name()))
        }
        (_, Some(launched)) => {
            let joining = Joining { share: host == Host::Shm, ..Joining::from_env()? };
            let comm = Communicator::join(&launched, joining)?;
            if host == Host::Shm
                && args.sweep.ranks > 1
                && comm.size() == args.sweep.ranks
                && !comm.shares_memory()
            {
                return Err(Failure::run("these ranks share no memory: they are not all on one host"));
            }
            let how = match host {
                Host::Shm => format!("as processes that share a segment, {}", buffers(args)),
                _ => "as processes, over TCP".into(),
            };
            process(args, choice, comm, how)
        }
        (Host::Threads, None) => {
            let world = World::threads(args.sweep.ranks);
            let world = if path == Path::Messages { world.messages() } else { world };
            Ok(threads(choice, world, format!("on threads, {}", path.name())))
        }
        (Host::Shm, None) => {
            let buffers = buffers(args);
            let how = format!("as threads of one process that share a segment, as processes do, {buffers}");
            Ok(threads(choice, World::shm(args.sweep.ranks), how))
        }
        (Host::Tcp, None) => over_loopback(args, choice),
    }
}

fn threads(choice: &Choice, world: impl Into<World>, how: String) -> Ranks {
    Ranks { carrier: Carrier::World(choice.on(world.into())), how }
}

fn process(args: &Args, choice: &Choice, comm: Communicator, how: String) -> Outcome<Ranks> {
    if comm.size() != args.sweep.ranks {
        return Err(Failure::usage(format!(
            "--ranks {}, but {} were started",
            args.sweep.ranks,
            comm.size()
        )));
    }
    Ok(Ranks { carrier: Carrier::Process(choice.within(comm)?), how })
}

/// Threads of this process over its own sockets.
fn over_loopback(args: &Args, choice: &Choice) -> Outcome<Ranks> {
    let secret = || Secret::random().map_err(|error| Failure::from(Error::from(error)));
    let security = match args.security.unwrap_or(Mode::Loopback) {
        Mode::Loopback => Security::Loopback,
        Mode::Tls => Security::Tls(secret()?),
        Mode::TrustedFabric => Security::TrustedFabric(secret()?),
    };
    let how = format!("as threads of one process, over loopback TCP ({})", security.name());
    let world = World::tcp(args.sweep.ranks).security(security);
    let (world, how) = match args.ranks_per_host {
        Some(each) => (world.ranks_per_host(each), format!("{how}, as hosts of {each} ranks")),
        None => (world, how),
    };
    Ok(threads(choice, world, how))
}

/// Whose memory the buffers are, as the table says it.
fn buffers(args: &Args) -> &'static str {
    if args.register == 1 { "in registered buffers" } else { "through copies of buffers" }
}
