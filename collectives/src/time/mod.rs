//! When every rank is done: a schedule interpreted on virtual time, with no threads and no data.
//!
//! ```text
//! simulate ---> orbit    one rank per symmetry class of schedule and topology     132,000 ranks in a tenth of a second
//!          \--> clocks   every rank stepped; no link ever shared                  no queue, tens of millions of messages/s
//!           \-> events   every rank stepped; links shared, windows, lanes         an event queue
//! ```
//!
//! The three follow the execution rule and the timing of a message that `docs/ARCHITECTURE.md` gives, so where two
//! of them apply they agree to the picosecond. Every run is held against [`Bounds`]: a time that no machine could
//! reach is an error of ours, and is reported as one.

mod bounds;
mod cast;
mod error;

pub use bounds::Bounds;
pub use cast::{Cast, Everyone};
pub use error::Error;

use crate::schedule::Schedule;
use crate::{Collective, Geometry};
use allfold_sim::{Bytes, Costs, Picos, Sharing, Topology};

/// What is to be timed.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// Who sends what to whom.
    pub schedule: &'a dyn Schedule,
    /// How the buffer is cut.
    pub geometry: &'a Geometry,
    /// Bytes per element.
    pub element: u32,
    /// Over which links.
    pub topology: &'a Topology,
    /// What messages and reductions cost beside the links.
    pub costs: Costs,
    /// How many steps of a rank may be under way; 1 or more.
    pub window: u32,
    /// How flows share a link.
    pub sharing: Sharing,
    /// What the schedule computes, where that is known: the time is then also held against what any algorithm for
    /// it must move.
    pub collective: Option<Collective>,
}

impl<'a> Job<'a> {
    /// A job with the defaults of everything else: [`Costs::default`], a window of one step, links split evenly.
    pub fn new(
        schedule: &'a dyn Schedule,
        geometry: &'a Geometry,
        element: u32,
        topology: &'a Topology,
    ) -> Job<'a> {
        Job {
            schedule,
            geometry,
            element,
            topology,
            costs: Costs::default(),
            window: 1,
            sharing: Sharing::default(),
            collective: None,
        }
    }
}

/// How to get the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Step every rank.
    Full,
    /// Step one rank per symmetry class; refuse where there is no symmetry or chunks are unequal.
    Orbit,
    /// The same, with chunks rounded up to equal sizes; [`Outcome::rounded`] then says so.
    OrbitRounded,
    /// `Orbit` where it applies exactly, else `Full`.
    #[default]
    Auto,
}

/// Which interpreter a time came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// A clock per rank; no link was shared.
    Clocks,
    /// An event queue, with links shared.
    Events,
    /// A clock per symmetry class.
    OrbitClocks,
    /// An event queue over symmetry classes, links weighed by how many flows of a class cross them.
    OrbitEvents,
}

/// The result of [`simulate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// When the last rank is done.
    pub time: Picos,
    /// When each actor is done: each rank, or one representative of each symmetry class, in order.
    pub finish: Vec<Picos>,
    /// Messages between ranks, over all ranks.
    pub messages: u64,
    /// Bytes in those messages, over all ranks.
    pub bytes: Bytes,
    /// Folds every message with its time, in the order of the method: equal for equal runs.
    pub event_hash: u64,
    /// How the time was found.
    pub method: Method,
    /// What it was held against.
    pub bounds: Bounds,
    /// Bytes over each link, by [`allfold_sim::LinkId`]; with a method by symmetry classes, over one link of each class.
    pub links: Vec<Bytes>,
    /// Where chunks were rounded up to equal sizes: elements of the whole buffer after that.
    pub rounded: Option<u64>,
}

/// What an engine hands back; [`simulate`] turns it into an [`Outcome`].
#[allow(dead_code)]
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// When each actor is done.
    pub finish: Vec<Picos>,
    /// The same run with no byte taking any time on a link: the second clock, carried beside the first through the
    /// same dependencies. The time may never beat its maximum.
    pub chain: Picos,
    /// Messages that actors sent to other ranks.
    pub messages: u64,
    /// Bytes in those messages.
    pub bytes: u64,
    /// Bytes over each link, or over one link of each class.
    pub links: Vec<u64>,
    /// Folds every message with its time.
    pub hash: u64,
}
