//! A machine that is this CPU: the kernels' own source, compiled by a C++ compiler, with a fibre per thread, under the driver's
//! rules for streams, events and captures.
//!
//! ```text
//! CudaMachine  streams    queues that run in order, events between them      every call ends here
//!    |        |- races    detection of accesses that no event orders
//!    |        |- capture  rules of captures, and graphs that are replayed
//!    |        |- memory   guard strips around every block, and access between devices
//!    |        |- foreign  work of a stand-in for a foreign library (NCCL)
//!    |        \- work     execution of a task
//!    \-- library           the compiled kernels
//! ```
//!
//! The shim checks indices and tails, barriers, shuffles, arithmetic, unordered accesses, captures that the driver refuses, and
//! waits of the host that would never end. It cannot check speed, nor races between blocks, since it runs blocks one after another.

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
