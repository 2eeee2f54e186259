//! An algorithm: what it computes, what it is called, and what builds its schedule.

use super::shape::Shape;
use crate::Collective;
use crate::schedule::Schedule;
use std::fmt;
use std::sync::Arc;

/// A row of the table, or an algorithm of your own, which can be used wherever one of the table can.
///
/// ```
/// use allfold_schedules::{Collective, algorithms::RingAllReduce, registry::Algorithm};
/// use std::sync::Arc;
///
/// static MINE: Algorithm = Algorithm::new(Collective::AllReduce, "mine", "a ring, as an example", |shape| {
///     Arc::new(RingAllReduce(shape.ranks()))
/// });
/// ```
pub struct Algorithm {
    /// The collective that the algorithm computes.
    pub collective: Collective,
    /// The algorithm's name: `ring`, `halving_doubling`, ...
    pub name: &'static str,
    /// One line for help texts.
    pub about: &'static str,
    /// Whether buffers are cut into segments that are pipelined, unless the user chooses otherwise.
    pub pipelined: bool,
    pub(super) build: fn(Shape) -> Arc<dyn Schedule>,
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.collective, self.name)
    }
}

impl Algorithm {
    /// An algorithm of your own; `build` makes its schedule for a shape. It is not pipelined unless the user asks for it.
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

    /// How many steps a rank has in flight at once, unless the user chooses otherwise.
    pub fn window(&self) -> u32 {
        if self.pipelined { 64 } else { 1 }
    }

    /// Into how many segments a buffer of this many bytes is cut, unless the user chooses otherwise: pieces of
    /// 128 KiB for a pipeline, one piece otherwise. The result does not depend on it.
    pub fn segments(&self, bytes: u64) -> u32 {
        const PIECE: u64 = 128 << 10;
        if self.pipelined { bytes.div_ceil(PIECE).clamp(1, 4096) as u32 } else { 1 }
    }
}
