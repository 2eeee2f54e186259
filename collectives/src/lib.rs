//! Collective communication: communicators that run schedules on real data.
//!
//! A [`schedule::Schedule`] defines what each rank sends and receives in each round. [`check`] proves it, [`time`] computes when every
//! rank is done, and a [`World`] runs it on real data: ranks are threads, processes or tasks on a virtual clock. If a rank disagrees with
//! the others, panics, leaves or takes too long, all other ranks get an error that names it.
//!
//! ```
//! use allfold_collectives::{Collective, Communicator, Error, ReduceOp, World};
//! use allfold_sim::Topology;
//!
//! # fn main() -> Result<(), Error> {
//! let topology = Topology::named("nodes8", 16)?;
//! let world = World::sim(&topology).algorithm(Collective::AllReduce, "halving_doubling");
//! let report = world.run_each(|comm: Communicator| -> Result<f32, Error> {
//!     let mut gradient = vec![comm.rank().0 as f32; 1_000_000];
//!     comm.all_reduce(&mut gradient, ReduceOp::Avg)?;
//!     Ok(gradient[0])
//! })?;
//! assert!(report.ranks.iter().all(|mean| *mean == Ok(7.5)));
//! assert_eq!(report.finish[0].to_string(), "67.933 us");
//! # Ok(())
//! # }
//! ```
//!
//! With `World::threads(16)` the same program runs on real time and gives the same bits.

mod backends;
mod buffer;
mod communicator;
mod contract;
mod error;
mod exec;
pub mod flight;
mod fused;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transport;
mod work;
pub mod world;

pub use allfold_kernels::{DType, Element, ReduceOp};
pub use allfold_net::{environment, rendezvous, running_time};
pub use allfold_schedules::{Collective, Extent, Geometry, Rank};
pub use allfold_schedules::{algorithms, check, meaning, registry, render, schedule};
pub use allfold_timing as time;
#[cfg(feature = "mpi")]
pub use backends::mpi;
pub use backends::sim::Activity;
pub use backends::tcp;
pub use buffer::Buffer;
pub use communicator::{AbortHandle, Communicator, Joining, Plan, Planned, write_flight_record};
pub use contract::{Call, Operation, interruptible, interruption};
pub use error::{Error, Lost, Result};
pub use work::Work;
pub use world::{OnThreads, Report, World};

/// The Rust examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
