//! What became of the ranks of a world.

use crate::Rank;
use crate::backends::sim::Activity;
use allfold_sim::Picos;

/// What became of every rank.
#[derive(Debug)]
pub struct Report<R, E> {
    /// What each rank returned, in order of ranks. One that panicked has [`crate::Error::PeerLost`] with its own number.
    pub ranks: Vec<Result2<R, E>>,
    /// When each rank was done: virtual time on the simulator, else real time since the start.
    pub finish: Vec<Picos>,
    /// The rank whose failure came first, where one failed: one that failed of itself before any that was told.
    pub first: Option<Rank>,
    /// What ranks computed and communicated, on virtual time, where [`crate::World::timeline`] asked for it.
    pub timeline: Vec<Activity>,
    /// On virtual time: of every message with the time of its arrival, in any order. The same program has the same
    /// one in every run, and that of [`crate::time::traced`] where it does one collective.
    pub event_hash: Option<u64>,
}

/// What a rank returned.
pub(super) type Result2<R, E> = std::result::Result<R, E>;
