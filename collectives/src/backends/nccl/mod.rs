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
//! own over the functions that are used. Initialisation does not block, every wait has a deadline and asks NCCL for its
//! asynchronous errors, and what is late or failed is aborted.
//!
//! Scheduled collectives run with a window of 1, one communicator per call, since a stream runs its groups one after
//! another: for conformance and algorithms of one's own, not for speed.

mod api;
mod comm;
mod control;
mod deadline;
mod native;
mod scheduled;
#[cfg(any(test, feature = "testing"))]
mod standin;
#[cfg(test)]
mod tests;

pub use api::version;
pub use comm::{NcclComm, UniqueId};
pub use control::{Alone, Control};
pub(crate) use deadline::until;
pub use scheduled::{Wire, run_scheduled};

/// As [`NcclComm::join`], over the stand-in for NCCL: ranks are threads, and their memory is the shim's.
///
/// # Errors
/// As [`NcclComm::join`].
#[cfg(any(test, feature = "testing"))]
pub(crate) fn join_stand_in(
    queue: allfold_kernels::cuda::Queue,
    place: (crate::Rank, u32),
    control: Box<dyn Control>,
    deadline: std::time::Duration,
) -> crate::Result<NcclComm> {
    NcclComm::join_by(Ok(&standin::API), queue, place, control, (deadline, true))
}
