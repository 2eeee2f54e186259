//! What is sent: schedules, the proofs that they are right, and the communicators that run them.

pub mod algorithms;
mod backends;
mod buffer;
pub mod check;
mod collective;
mod communicator;
mod error;
mod exec;
mod fingerprint;
mod geometry;
mod ledger;
pub mod registry;
pub mod render;
pub mod schedule;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod time;
mod transport;
mod work;
mod world;

pub use allfold_kernels::{DType, Element, ReduceOp};
pub use allfold_sim::Rank;
pub use backends::sim::Activity;
pub use buffer::Buffer;
pub use collective::Collective;
pub use communicator::{Communicator, Plan, Planned};
pub use error::{Error, Lost, Result};
pub use fingerprint::{Call, Operation};
pub use geometry::Geometry;
pub use work::Work;
pub use world::{Report, World};
