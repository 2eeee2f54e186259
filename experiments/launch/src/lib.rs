//! One process per rank on every node, watched until all are done or one has failed.
//!
//! ```text
//! node 0   launcher: coordinator + server of the rendezvous     node 1   launcher
//!             |  agent <------ start, stop, end ------------------------->  agent
//!             |    |--- rank 0  (its own process group)                       |--- rank 2
//!             |    |--- rank 1                                                |--- rank 3
//!             '--- guard: kills the groups if the launcher is gone            '--- guard
//! ```
//!
//! When a rank fails, all ranks of this start are asked to stop, then killed, and started again while restarts are left; in an elastic job
//! only the failed rank is started again. Launchers exchange heartbeats: if a launcher ends, stops or cannot be reached for 20 s, the job
//! ends with an error that names its node. No process outlives its launcher: ranks die with it (`PR_SET_PDEATHSIG`), the guard kills their
//! process groups, and processes that left their group are killed by the launcher, which adopts them, or by the guard, which finds them by
//! a variable of their environment.
//!
//! ```no_run
//! use allfold_collectives::environment::RendezvousAddress;
//! use allfold_collectives::tcp::Security;
//! use allfold_launch::LaunchJob;
//! use std::time::Duration;
//!
//! let job = LaunchJob {
//!     ranks: 4,
//!     nodes: 1,
//!     node: 0,
//!     rendezvous_address: RendezvousAddress { host: "127.0.0.1".into(), port: 0, served: true },
//!     max_restarts: 1,
//!     elastic: false,
//!     grace: Duration::from_secs(5),
//!     timeout: Duration::from_secs(60),
//!     security: Security::Loopback,
//!     log_dir: None,
//!     stalled: None,
//!     tee: false,
//!     log: None,
//!     command: vec!["./train".into()],
//! };
//! allfold_launch::run(job, Box::new(std::io::stdout()))?;
//! # Ok::<(), allfold_launch::Error>(())
//! ```

mod agent;
mod caught;
mod coordinator;
mod end;
mod error;
pub mod guard;
mod job;
mod limits;
mod line;
mod messages;
mod output;
mod process;
mod processes;
mod program;
mod said;
pub mod shim;
mod signals;
mod start;
mod system;
mod variables;
mod waiting;

pub use agent::run;
pub use end::End;
pub use error::{Error, LaunchResult};
pub use job::LaunchJob;
pub use program::{program, start_by};
pub use said::WAS_ASKED;
