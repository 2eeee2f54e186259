//! Every algorithm of every collective, in one table that tests, benchmarks and the command line all read.

use crate::Collective;
use crate::algorithms::RingAllReduce;
use crate::schedule::{Rank, Schedule};
use std::sync::Arc;

/// What a schedule is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of ranks, 1 or more.
    pub ranks: u32,
    /// The root of a rooted collective; ignored by the others.
    pub root: Rank,
}

/// One row of the table.
pub struct Algorithm {
    /// What it computes.
    pub collective: Collective,
    /// What it is called: `ring`, `halving_doubling`, ...
    pub name: &'static str,
    /// One line for help texts.
    pub about: &'static str,
    build: fn(Shape) -> Arc<dyn Schedule>,
}

impl Algorithm {
    /// The schedule for a shape.
    pub fn build(&self, shape: Shape) -> Arc<dyn Schedule> {
        (self.build)(shape)
    }
}

/// The table.
pub const ALGORITHMS: &[Algorithm] = &[Algorithm {
    collective: Collective::AllReduce,
    name: "ring",
    about: "least bytes, most rounds",
    build: |shape| Arc::new(RingAllReduce(shape.ranks)),
}];
