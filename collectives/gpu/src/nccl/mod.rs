//! NCCL: one rank of a communicator on one GPU, in this process or in one of many.
//!
//! ```text
//! NcclComm --- Api        libnccl.so.2, loaded at run time: a missing library or function is a typed error
//!     |    \-- Queue      buffers and streams of `allfold_kernels::cuda`
//!     |     \- Control    bytes beside NCCL: the unique id, and fingerprints where they are asked for
//!     |
//!     native              NCCL's own collectives: fast, in an order of its own, so no promise of bits
//!     scheduled           any algorithm of the table by grouped send and receive and our kernels: our bits
//! ```
//!
//! No crate named `nccl-rs` is published, and `nccl` is a configuration format. cudarc binds NCCL, but looks for
//! `libnccl.so`, which NVIDIA's Python wheels do not ship, and panics where a function is missing; hence a table of our
//! own over the functions that are used. Communicators block, so that a call costs no thread within NCCL; calls that may wait
//! for other ranks are made on a thread of their own with the deadline (`aside` says which). Every wait has a deadline and
//! asks NCCL for its asynchronous errors, and what is late or failed is aborted from outside.
//!
//! On the shim of `allfold_kernels::cuda` a stand-in takes the library's place in tests (feature `testing`).
//!
//! Scheduled collectives run with a window of 1, one communicator per call, since a stream runs its groups one after
//! another: for conformance and algorithms of one's own, not for speed.

mod any;
mod api;
mod aside;
mod call;
mod comm;
mod control;
mod deadline;
mod ending;
mod issue;
mod native;
mod numbers;
mod presence;
mod scheduled;
#[cfg(any(test, feature = "testing"))]
mod standin;
#[cfg(test)]
mod tests;

pub use any::{NcclCall, has};
pub use api::version;
pub use comm::{NcclComm, UniqueId};
pub use control::{Alone, Control};
pub(crate) use deadline::until;
pub(crate) use presence::NcclLibrary;
pub use scheduled::run_scheduled;
#[cfg(any(test, feature = "testing"))]
pub use standin::{PeerLoss, StandIn, stand_in};
