//! The machine that is this CPU: the kernels' own source, compiled by a C++ compiler, a fibre per thread, under the driver's
//! rules for streams, events and captures.
//!
//! ```text
//! CudaMachine  streams    queues that run in order, events between them      every call ends in it
//!    |        |- races    which accesses no event orders
//!    |        |- capture  what may be captured, and graphs that are replayed
//!    |        |- memory   strips around every block, devices that reach each other
//!    |        |- foreign  work of a stand-in for a foreign library (NCCL)
//!    |        \- work     runs a task
//!    \-- library           the kernels, compiled
//! ```
//!
//! What it shows: indices and tails, barriers, shuffles, arithmetic; accesses that nothing orders; captures that the driver
//! refuses; waits of the host that would never end. What it cannot show: speed, and that blocks do not race (they run one after
//! another).

mod capture;
mod foreign;
mod library;
mod machine;
mod memory;
mod named;
mod options;
mod races;
mod streams;
#[cfg(test)]
mod tests;
mod work;

pub(super) use named::{argument_sizes, is_of, run_by_name};

pub use foreign::{Foreign, Poll, Progress};
pub use machine::Shim;
pub use named::shim_kernels;
pub use options::{FiberOrder, ShimOptions};
pub use work::shim_launched;
