//! Collective algorithms as pure functions: schedules, proofs of their correctness, and drawings of them.
//!
//! A [`schedule::Schedule`] defines what each rank sends and receives in each round, and nothing else. It can therefore be proved for any
//! number of ranks ([`check`]), drawn ([`render`]), timed in virtual time (`allfold-timing`) and run on real data
//! (`allfold-collectives`). [`algorithms`] contains the textbook algorithms, [`registry`] names them, and a [`Geometry`] gives the
//! positions of a chunk's elements. This crate does no I/O, starts no threads and reads no clock.
//!
//! ```
//! use allfold_schedules::registry::{self, Shape};
//! use allfold_schedules::{Collective, check, render};
//!
//! let (ring, shape) = (registry::find(Collective::AllReduce, "ring")?, Shape::new(4)?);
//! assert!(check::verify(ring, shape).ok());
//! assert_eq!(
//!     render::cost(&ring.build(shape)?),
//!     "4 ranks, 4 chunks: 6 rounds, 24 messages; a rank sends 1.500 and reduces 0.750 times the data",
//! );
//! # Ok::<(), registry::Error>(())
//! ```
//!
//! [`testing::proves`] runs the proofs on the user's own algorithm; `docs/own-algorithm.md` shows an example.

pub mod algorithms;
pub mod check;
mod collective;
mod extent;
mod geometry;
pub mod meaning;
pub mod registry;
pub mod render;
pub mod schedule;
pub mod testing;

pub use allfold_base::Rank;
pub use collective::Collective;
pub use extent::Extent;
pub use geometry::Geometry;

/// The example in the documents is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/own-algorithm.md")]
pub struct Documents;
