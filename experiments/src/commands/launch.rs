//! `allfold launch`: starts one process per rank, here or on many hosts, and watches them.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::{closed_output, launched, log};
use allfold_collectives::environment::{RendezvousAddress, seconds, some_seconds};
use allfold_collectives::{Joining, Rank};
use allfold_launch::{LaunchJob, shim};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Flags of `launch`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold launch -n 4 -- train --config experiments/configs/digits-cnn.toml
  allfold launch -n 4 --max-restarts 3 --log-dir logs --tee -- train --config run.toml
  allfold launch -n 4 --max-restarts 3 --elastic -- train --config run.toml
  allfold launch -n 8 --nnodes 2 --node-rank 1 --rdzv node0:29500 -- train --config run.toml
  allfold launch -n 2 -- python train.py

If the first word is a command of allfold, this program runs it; any other word is a program on the PATH. Ranks get the
environment variables of torchrun. The exit code is 0, or that of the first rank to fail (128 + the signal that killed it).

SIGUSR1 and SIGUSR2 to the launcher are passed to those processes of the ranks that catch them. With --log-dir a rank of
allfold writes its flight record on SIGUSR2 and goes on: `kill -USR2 PID`, then `allfold triage DIR`, shows the operation that
each rank of a hanging job is in. With --stalled SECONDS ranks without progress do so unasked. Ranks also write it when Ctrl-C ends the job, but one that is stopped. A second
Ctrl-C kills the ranks at once.")]
pub(crate) struct Args {
    /// Ranks to start on this node, 1 to 65536
    #[arg(short = 'n', long, visible_alias = "nproc-per-node", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: u32,
    /// Number of nodes, 1 to 65536
    #[arg(long, value_name = "NODES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    nnodes: u32,
    /// The number of this node, 0 to --nnodes less 1
    #[arg(long, value_name = "NODE", default_value_t = 0)]
    node_rank: u32,
    /// Rendezvous: the host of node 0 and a free port there [default on one node: 127.0.0.1 and any port]
    #[arg(long, value_name = "HOST:PORT")]
    rdzv: Option<String>,
    /// How often, 0 to 4294967295 times, to restart all ranks after one has failed, unless it exited with 2 (a wrong flag, file or value) or
    /// 65 (a run that diverged, and would diverge again)
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    max_restarts: u32,
    /// Restart only the ranks that failed; the other processes stay, and all continue from the last checkpoint. Once a rank
    /// has exited with 0, a failure restarts all ranks. Give this and --max-restarts, which counts per node, on every node;
    /// all nodes must see the folder of the checkpoints
    #[arg(long, requires = "max_restarts")]
    elastic: bool,
    /// Seconds, 0 to 1e9, between the request that ranks end and killing them
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    grace: Duration,
    /// Seconds that nodes and ranks wait for each other, 0.001 to 1e9
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = some_seconds)]
    rdzv_timeout: Duration,
    /// Write each rank's output, and its flight record if it fails, to files below this folder
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// With --log-dir: a rank in which no operation begins or ends for so many seconds, 0.001 to 1e9, writes its flight record and goes on
    #[arg(long, value_name = "SECONDS", requires = "log_dir", value_parser = some_seconds)]
    stalled: Option<Duration>,
    /// With --log-dir: print the ranks' output as well, each line after its rank
    #[arg(long, requires = "log_dir")]
    tee: bool,
    /// The command that each rank runs
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Arguments of a rank's process: the launcher's process id, and the rank's command.
#[derive(clap::Args, Debug)]
pub struct RankArgs {
    /// The launcher's process id
    launcher: i32,
    /// The rank's command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Replaces this process by the rank's program.
///
/// # Errors
/// The launcher has ended; the program cannot be run.
pub fn run_rank(args: &RankArgs) -> CommandResult {
    Ok(shim::run(args.launcher, &args.command)?)
}

/// Launches the ranks, and waits for the end of the job.
///
/// # Errors
/// The first failure of a rank; flags that contradict each other.
pub fn run(args: &Args, own: &[String]) -> CommandResult {
    if args.node_rank < args.nnodes
        && let Some(name) = args
            .command
            .first()
            .and_then(|word| word.to_str())
            .filter(|name| own.iter().any(|own| own == name))
    {
        launched::fits(name, args.ranks.saturating_mul(args.nnodes))?;
    }
    if args.node_rank >= args.nnodes {
        return Err(CommandError::usage(format!(
            "--node-rank {} is outside of --nnodes {}: nodes are 0 to {}",
            args.node_rank,
            args.nnodes,
            args.nnodes - 1
        )));
    }
    if args.ranks.checked_mul(args.nnodes).is_none_or(|ranks| ranks > Rank::MOST) {
        return Err(CommandError::usage(format!("-n times --nnodes is more than {} ranks", Rank::MOST)));
    }
    let rendezvous_address = match &args.rdzv {
        Some(at) => rendezvous_address(at, args.nnodes)?,
        None if args.nnodes == 1 => RendezvousAddress { host: "127.0.0.1".into(), port: 0, served: true },
        None => {
            return Err(CommandError::usage(
                "--nnodes above 1 needs --rdzv HOST:PORT on every node: the host of node 0 and a free port there",
            ));
        }
    };
    if let Some(secret) = std::env::var_os("ALLFOLD_SECRET_FILE").filter(|path| !path.is_empty())
        && std::fs::metadata(&secret).is_ok_and(|found| !found.is_file())
    {
        return Err(CommandError::usage(format!(
            "ALLFOLD_SECRET_FILE: {} is not a file; the launcher and every rank read the secret from it: name a file",
            secret.display()
        )));
    }
    let mut command = args.command.clone();
    if command.first().and_then(|word| word.to_str()).is_some_and(|word| own.iter().any(|own| own == word)) {
        command.splice(0..0, allfold_launch::program().map_err(CommandError::run)?);
    }
    let job = LaunchJob {
        ranks: args.ranks,
        nodes: args.nnodes,
        node: args.node_rank,
        rendezvous_address,
        max_restarts: args.max_restarts,
        elastic: args.elastic,
        grace: args.grace,
        timeout: args.rdzv_timeout,
        security: Joining::from_env().map_err(CommandError::usage)?.security,
        log_dir: args.log_dir.clone(),
        stalled: args.stalled,
        tee: args.tee,
        log: log::level(),
        command,
    };
    Ok(allfold_launch::run(job, closed_output::stdout())?)
}

fn rendezvous_address(at: &str, nodes: u32) -> CommandResult<RendezvousAddress> {
    let wrong = || CommandError::usage(format!("--rdzv {at}: write HOST:PORT, such as node0:29500"));
    let (host, port) = at.rsplit_once(':').ok_or_else(wrong)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port: u16 = port.parse().map_err(|_| wrong())?;
    if host.is_empty() || (port == 0 && nodes > 1) {
        return Err(wrong());
    }
    Ok(RendezvousAddress { host: host.into(), port, served: true })
}
