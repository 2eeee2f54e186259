//! The part of a job that is launched on this node.

use allfold_collectives::environment::RendezvousAddress;
use allfold_collectives::tcp::Security;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The part of a job that is to be launched on this node.
#[derive(Clone, Debug)]
pub struct LaunchJob {
    /// Ranks of this node.
    pub ranks: u32,
    /// Nodes in all.
    pub nodes: u32,
    /// This node's number.
    pub node: u32,
    /// The address at which launchers and ranks meet. Port 0, on a single node, means any port.
    pub rendezvous_address: RendezvousAddress,
    /// How often to start again after a failure.
    pub max_restarts: u32,
    /// Whether only the failed ranks are started again while the others wait for them.
    pub elastic: bool,
    /// How long ranks may take to end when they are asked to.
    pub grace: Duration,
    /// How long nodes and ranks wait for each other.
    pub timeout: Duration,
    /// How callers prove that they belong to the job.
    pub security: Security,
    /// A folder for the output of ranks and their flight records; none: the output is the launcher's, line by line.
    pub log_dir: Option<PathBuf>,
    /// The command that each rank runs.
    pub command: Vec<OsString>,
}
