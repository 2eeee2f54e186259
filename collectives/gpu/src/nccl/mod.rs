//! NCCL: one rank of a communicator on one GPU, in one process or in several.
//!
//! ```text
//! NcclComm --- Api        libnccl.so.2, loaded at run time: a missing library or function is a typed error
//!     |    \-- Queue      buffers and streams of `allfold_cuda`
//!     |     \- Control    bytes outside NCCL: the unique id, and descriptions of calls to compare
//!     |
//!     native              NCCL's own collectives: fast, in NCCL's own order, so the bits are not defined
//!     scheduled           any algorithm of the table by grouped send and receive and Allfold's kernels: exact bits
//! ```
//!
//! No crate named `nccl-rs` is published, and the crate `nccl` is a configuration format. cudarc binds NCCL, but looks for
//! `libnccl.so`, which NVIDIA's Python wheels do not contain, and panics if a function is missing. Allfold therefore has its own
//! table of the functions that it uses. Communicators block, so that a call needs no thread within NCCL; calls that may wait for
//! other ranks are made on a separate thread with the deadline (see `aside`). Every wait has a deadline and polls NCCL's
//! asynchronous errors, and a late or failed communicator is aborted from another thread.
//!
//! On the shim of `allfold_cuda`, the NCCL stand-in replaces the library (module `standin`, feature `testing`).
//!
//! A scheduled collective runs one step at a time, because a stream runs its groups one after another. Scheduled collectives are
//! for conformance tests and for the user's own algorithms, not for speed.

mod any;
mod api;
mod aside;
mod call;
mod comm;
mod control;
mod deadline;
mod ending;
mod host;
mod issue;
mod native;
mod numbers;
mod presence;
mod registered;
mod scheduled;
#[cfg(any(test, feature = "testing"))]
mod standin;
#[cfg(test)]
mod tests;

pub use any::{NcclCall, has};
pub use api::version;
pub use comm::{NcclComm, UniqueId};
pub(crate) use control::again;
pub use control::{Alone, Control, culprit};
pub(crate) use deadline::until;
pub(crate) use host::host;
pub use issue::OUTSTANDING;
pub(crate) use presence::NcclLibrary;
pub use registered::{CommBuffer, Registration};
pub use scheduled::run_scheduled;
#[cfg(any(test, feature = "testing"))]
pub use standin::{
    NcclCommunicators, PeerLoss, ProcessFault, StandIn, across_processes, communicators, stand_in,
};
