//! The part of a job that is launched on this node.

use allfold_collectives::environment::RendezvousAddress;
use allfold_collectives::tcp::Security;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The part of a job that is to be launched on this node.
#[derive(Clone, Debug)]
pub struct LaunchJob {
    /// The number of ranks on this node.
    pub ranks: u32,
    /// The number of nodes.
    pub nodes: u32,
    /// The number of this node.
    pub node: u32,
    /// The rendezvous address of launchers and ranks. Port 0, on a single node, means any port.
    pub rendezvous_address: RendezvousAddress,
    /// How many times at most all ranks are started again after a failure; with `elastic`, the failed ranks of a node.
    pub max_restarts: u32,
    /// Whether only the failed ranks are started again while the others wait for them.
    pub elastic: bool,
    /// The time between the request that ranks end and killing them.
    pub grace: Duration,
    /// How long nodes and ranks wait for each other.
    pub timeout: Duration,
    /// How callers prove that they belong to the job.
    pub security: Security,
    /// A folder for the output of ranks and their flight records; `None`: the launcher prints the output, line by line.
    pub log_dir: Option<PathBuf>,
    /// After how long without progress a rank writes its flight record and goes on; `None`: never.
    pub stalled: Option<Duration>,
    /// Whether output that is written to files is printed as well.
    pub tee: bool,
    /// How much ranks log: `ALLFOLD_LOG` in their environment; `None`: as this process's environment says.
    pub log: Option<&'static str>,
    /// The command that each rank runs.
    pub command: Vec<OsString>,
}
