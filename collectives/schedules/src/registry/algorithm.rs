//! An algorithm: its collective, its name, and the function that builds its schedule.

use super::Error;
use super::shape::Shape;
use crate::Collective;
use crate::schedule::Schedule;
use std::fmt;
use std::sync::Arc;

/// A row of the algorithm table, or the user's own algorithm, which can be used like one of the table.
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
    /// Whether buffers are by default cut into segments for pipelining.
    pub pipelined: bool,
    pub(super) build: Build,
    takes: fn(u32) -> bool,
    which: &'static str,
}

/// The function or closure that builds the schedule for a shape.
pub(super) enum Build {
    Function(fn(Shape) -> Arc<dyn Schedule>),
    Closure(&'static (dyn Fn(Shape) -> Arc<dyn Schedule> + Send + Sync)),
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.collective, self.name)
    }
}

impl Algorithm {
    /// The user's own algorithm; `build` makes its schedule for a shape. By default it is not pipelined.
    pub const fn new(
        collective: Collective,
        name: &'static str,
        about: &'static str,
        build: fn(Shape) -> Arc<dyn Schedule>,
    ) -> Algorithm {
        Algorithm::with(collective, name, about, Build::Function(build))
    }

    /// [`Algorithm::new`] with a closure, for a schedule that depends on values known only when the program runs.
    pub const fn made_by(
        collective: Collective,
        name: &'static str,
        about: &'static str,
        build: &'static (dyn Fn(Shape) -> Arc<dyn Schedule> + Send + Sync),
    ) -> Algorithm {
        Algorithm::with(collective, name, about, Build::Closure(build))
    }

    const fn with(
        collective: Collective,
        name: &'static str,
        about: &'static str,
        build: Build,
    ) -> Algorithm {
        let takes = |_| true;
        Algorithm { collective, name, about, pipelined: false, build, takes, which: "any number of ranks" }
    }

    /// This algorithm for the numbers of ranks for which `takes` is true; `which` says which these are, as in "a square number of ranks".
    /// Other numbers are refused, and `allfold verify` leaves them out.
    pub const fn only_for(self, which: &'static str, takes: fn(u32) -> bool) -> Algorithm {
        Algorithm { takes, which, ..self }
    }

    /// Whether the algorithm takes this number of ranks.
    pub fn takes(&self, ranks: u32) -> bool {
        (self.takes)(ranks)
    }

    /// The schedule for a shape.
    ///
    /// # Errors
    /// A number of ranks that the algorithm does not take, or a schedule for another number of ranks.
    pub fn build(&self, shape: Shape) -> Result<Arc<dyn Schedule>, Error> {
        let Algorithm { collective, name, which, .. } = *self;
        let ranks = shape.ranks();
        if !self.takes(ranks) {
            return Err(Error::Ranks { collective, name, which, ranks });
        }
        let schedule = match &self.build {
            Build::Function(build) => build(shape),
            Build::Closure(build) => build(shape),
        };
        match schedule.ranks() {
            made if made == ranks => Ok(schedule),
            made => Err(Error::Made { collective, name, made, ranks }),
        }
    }

    /// The default window: how many steps of a rank may be in flight.
    pub fn window(&self) -> u32 {
        if self.pipelined { 64 } else { 1 }
    }

    /// The default number of segments for a buffer of `bytes`: segments of at most 128 KiB (larger beyond 4,096 segments) for a pipelined
    /// algorithm, otherwise one segment. The result of the collective does not depend on the number.
    pub fn segments(&self, bytes: u64) -> u32 {
        const PIECE: u64 = 128 << 10;
        if self.pipelined { bytes.div_ceil(PIECE).clamp(1, 4096) as u32 } else { 1 }
    }
}
