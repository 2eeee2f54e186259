//! What stands in for NCCL's library in tests: its functions over ranks that are threads, on streams of the shim.
//!
//! ```text
//! options    what a test asks for: the version, who may share a GPU, how a lost peer shows     by machine
//! world      handles, ranks of a communicator, what they share
//! making     init, split, shrink              ending   finalize, destroy, abort
//! group      calls until the outermost end    calls    the collectives, by their names
//! traffic    what ranks put into collectives and messages
//! kernel     what runs on a stream: it waits for the peers', moves data, notices who is gone
//! rules      what each function does, and which test shows it
//! ```
//!
//! Each rank counts as a process of its own, on one host. Whether calls block follows the communicator's settings. The rules
//! are read off NCCL's source (2.18 to 2.30: `init.cc`, `group.cc`, `enqueue.cc`); nothing else of the library's is shown.

mod calls;
mod ending;
mod group;
mod kernel;
mod making;
mod options;
#[cfg(test)]
mod rules;
mod traffic;
mod world;

pub(super) use calls::table;
pub(super) use options::options;
pub use options::{PeerLoss, StandIn, stand_in};
#[cfg(test)]
pub(super) use world::{die, threads_started};

use super::api::Answer;

const UNHANDLED_CUDA: Answer = 1;
const INTERNAL_ERROR: Answer = 3;
const INVALID_ARGUMENT: Answer = 4;
const INVALID_USAGE: Answer = 5;
const REMOTE_ERROR: Answer = 6;
