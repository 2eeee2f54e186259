//! The outcome of a world's ranks.

use crate::Rank;
use crate::backends::sim::Activity;
use allfold_sim::Picos;

/// The outcome of every rank.
#[derive(Debug)]
pub struct Report<R, E> {
    /// The result of each rank, in order of ranks. A rank that panicked has [`crate::Error::PeerLost`] with its own number.
    pub ranks: Vec<Result2<R, E>>,
    /// When each rank was done: virtual time on the simulator, else real time since the start.
    pub finish: Vec<Picos>,
    /// The rank that failed first, if any. A rank that failed by itself comes before ranks that got the error of a failed group.
    pub first: Option<Rank>,
    /// On virtual time, after [`crate::World::timeline`]: what every rank computed and communicated. Otherwise empty.
    pub timeline: Vec<Activity>,
    /// On virtual time: a hash of all messages with their arrival times, independent of order. The same program has the same hash
    /// in every run; for one collective it equals that of [`crate::time::traced`].
    pub event_hash: Option<u64>,
}

impl<R, E> Report<R, E> {
    /// The results of all ranks.
    ///
    /// # Errors
    /// The error of the rank that failed first.
    pub fn results(mut self) -> Result2<Vec<R>, E> {
        let first = self.first.map_or(0, Rank::index);
        if self.ranks.get(first).is_some_and(Result2::is_err) {
            self.ranks.swap(0, first);
        }
        self.ranks.into_iter().collect()
    }
}

/// The result of a rank.
pub(super) type Result2<R, E> = std::result::Result<R, E>;
