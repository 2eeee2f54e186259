//! The stand-in for the NCCL library, a test double: NCCL's functions for ranks that are threads, on streams of the shim, or
//! processes, each on streams of its stand-in driver.
//!
//! ```text
//! options    the options of a test, by machine: the version, ranks that share a GPU, how a lost peer is noticed
//! world      handles, ranks of a communicator, their common state
//! wire       what ranks that are processes tell each other, over sockets of this host
//! making     init, split, shrink              ending   finalize, destroy, abort
//! family     communicators that share resources: their kernels run in the order of their calls
//! buffers    memory of NCCL, registered buffers and windows
//! group      calls until the outermost end    calls    the collectives, by their names
//! traffic    what ranks contribute to collectives and messages
//! kernel     the work on a stream: it waits for the peers' parts, moves data, notices lost ranks
//! ```
//!
//! Each rank counts as a separate process on the same host. Whether calls block depends on the communicator's settings. The
//! behaviour follows NCCL's source (2.18 to 2.30: `init.cc`, `group.cc`, `enqueue.cc`); the library's other behaviour is not
//! modelled.

mod buffers;
mod calls;
mod ending;
mod family;
mod group;
mod kernel;
mod making;
mod options;
mod traffic;
mod wire;
mod world;

pub(super) use calls::table;
pub use family::{NcclCommunicators, communicators};
pub(super) use options::options;
pub(super) use options::spans_processes;
pub use options::{PeerLoss, ProcessFault, StandIn, across_processes, stand_in};
#[cfg(test)]
pub(super) use world::{die, threads_started};

use super::api::Answer;

const UNHANDLED_CUDA: Answer = 1;
const SYSTEM_ERROR: Answer = 2;
const INTERNAL_ERROR: Answer = 3;
const INVALID_ARGUMENT: Answer = 4;
const INVALID_USAGE: Answer = 5;
const REMOTE_ERROR: Answer = 6;
