//! What is to be launched.

use allfold_collectives::environment::RendezvousAddress;
use allfold_collectives::tcp::Security;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What is to be launched, on this node.
#[derive(Clone, Debug)]
pub struct LaunchJob {
    /// Ranks of this node.
    pub ranks: u32,
    /// Nodes in all.
    pub nodes: u32,
    /// Which of them this one is.
    pub node: u32,
    /// Where launchers and ranks meet. Port 0, on one node: any.
    pub rendezvous_address: RendezvousAddress,
    /// How often to start again after a failure.
    pub max_restarts: u32,
    /// Whether only the ranks that failed are started again, and the others wait for them.
    pub elastic: bool,
    /// How long ranks may take to end when they are asked to.
    pub grace: Duration,
    /// How long nodes and ranks wait for each other.
    pub timeout: Duration,
    /// Who may join.
    pub security: Security,
    /// A folder for the output of ranks and their flight records; none: the output is the launcher's, line by line.
    pub log_dir: Option<PathBuf>,
    /// What each rank runs.
    pub command: Vec<OsString>,
}
