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
//! A rank that fails ends its start of the world: every other one is asked to stop, then made to, and all of them are
//! started again while restarts are left. Launchers know from each other's signs of life that they are there: one that ends,
//! stops or is out of reach for 20 s ends the job, by name. Nothing that a rank started outlives its launcher: ranks die with it
//! (`PR_SET_PDEATHSIG`), their groups are killed by the guard, and what left its group is adopted and swept.

mod agent;
mod coordinator;
mod end;
mod error;
pub mod guard;
mod job;
mod line;
mod messages;
mod output;
mod process;
mod processes;
pub mod shim;
mod signals;
mod start;
mod variables;

pub use agent::run;
pub use end::End;
pub use error::{Error, LaunchResult};
pub use job::LaunchJob;
