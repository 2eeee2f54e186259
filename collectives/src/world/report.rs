//! The outcome of a world's ranks.

use crate::Rank;
use crate::backends::sim::Activity;
use allfold_sim::Picos;

/// The outcome of every rank.
#[derive(Debug)]
pub struct Report<R, E> {
    /// What each rank returned, in order of ranks. One that panicked has [`crate::Error::PeerLost`] with its own number.
    pub ranks: Vec<Result2<R, E>>,
    /// When each rank was done: virtual time on the simulator, else real time since the start.
    pub finish: Vec<Picos>,
    /// The rank that failed first, if any: a rank that failed by itself before ranks that were told.
    pub first: Option<Rank>,
    /// What ranks computed and communicated, on virtual time, where [`crate::World::timeline`] asked for it.
    pub timeline: Vec<Activity>,
    /// On virtual time: a hash of all messages with their arrival times, independent of order. The same program has the same hash
    /// in every run; for one collective it equals that of [`crate::time::traced`].
    pub event_hash: Option<u64>,
}

/// What a rank returned.
pub(super) type Result2<R, E> = std::result::Result<R, E>;
