//! What is sent: schedules, the proofs that they are right, and the communicators that run them.

pub mod algorithms;
mod collective;
mod geometry;
pub mod registry;
pub mod schedule;
pub mod time;

pub use allfold_kernels::{DType, Element, ReduceOp};
pub use allfold_sim::Rank;
pub use collective::Collective;
pub use geometry::Geometry;
