//! An algorithm: what it computes, what it is called, and what builds its schedule.

use super::shape::Shape;
use crate::Collective;
use crate::schedule::Schedule;
use std::fmt;
use std::sync::Arc;

/// One row of the table, or a user's own: wherever an algorithm of the table can be used, so can another one.
///
/// ```
/// use allfold_schedules::{Collective, algorithms::RingAllReduce, registry::Algorithm};
/// use std::sync::Arc;
///
/// static MINE: Algorithm = Algorithm::new(Collective::AllReduce, "mine", "a ring, for the sake of example", |shape| {
///     Arc::new(RingAllReduce(shape.ranks()))
/// });
/// ```
pub struct Algorithm {
    /// What it computes.
    pub collective: Collective,
    /// What it is called: `ring`, `halving_doubling`, ...
    pub name: &'static str,
    /// One line for help texts.
    pub about: &'static str,
    /// Whether it is cut into segments that follow each other through it, when nothing else is asked for.
    pub pipelined: bool,
    pub(super) build: fn(Shape) -> Arc<dyn Schedule>,
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.collective, self.name)
    }
}

impl Algorithm {
    /// An algorithm of one's own, given what builds its schedule for any shape. Not pipelined unless asked for.
    pub const fn new(
        collective: Collective,
        name: &'static str,
        about: &'static str,
        build: fn(Shape) -> Arc<dyn Schedule>,
    ) -> Algorithm {
        Algorithm { collective, name, about, pipelined: false, build }
    }

    /// The schedule for a shape.
    pub fn build(&self, shape: Shape) -> Arc<dyn Schedule> {
        (self.build)(shape)
    }

    /// How many steps a rank has under way at once, when nothing else is asked for.
    pub fn window(&self) -> u32 {
        if self.pipelined { 64 } else { 1 }
    }

    /// Into how many segments a buffer of this many bytes is cut, when nothing else is asked for: pieces of
    /// 128 KiB for a pipeline, one piece otherwise. Results do not depend on it.
    pub fn segments(&self, bytes: u64) -> u32 {
        const PIECE: u64 = 128 << 10;
        if self.pipelined { bytes.div_ceil(PIECE).clamp(1, 4096) as u32 } else { 1 }
    }
}
