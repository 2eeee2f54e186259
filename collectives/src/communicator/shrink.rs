//! Shrinking a communicator to the surviving ranks after a failure.

use super::Communicator;
use crate::{Rank, Result};

/// The sequence number in the key of the group that the first `shrink` makes; no operation reaches this number. Later calls of `shrink`
/// take the numbers below it.
const SHRINK: u64 = u64::MAX;

impl Communicator {
    /// After an error: returns a working communicator of the surviving ranks, and their old rank numbers in order of the new
    /// ones. Every survivor gets the same answer.
    ///
    /// The call waits until every rank of this communicator has called `shrink` or has ended (returned, panicked, or dropped
    /// its communicator). A rank that has done neither within the deadline of an operation is excluded, and gets an error when
    /// it calls `shrink`. This communicator fails, if it has not failed before.
    ///
    /// # Errors
    /// [`crate::Error::Poisoned`]: the other ranks continued without this rank.
    ///
    /// ```
    /// use allfold_collectives::{Error, Rank, ReduceOp, World};
    ///
    /// let report = World::threads(4).run_each(|comm| {
    ///     if comm.rank() == Rank(2) {
    ///         return Ok(0.0f32);
    ///     }
    ///     let mut x = [1.0f32];
    ///     assert!(comm.all_reduce(&mut x, ReduceOp::Sum).is_err() || comm.barrier().is_err());
    ///     let (comm, left) = comm.shrink()?;
    ///     assert_eq!(left, [Rank(0), Rank(1), Rank(3)]);
    ///     let mut x = [1.0f32];
    ///     comm.all_reduce(&mut x, ReduceOp::Sum)?;
    ///     Ok::<_, Error>(x[0])
    /// })?;
    /// assert_eq!(report.ranks, [Ok(3.0), Ok(3.0), Ok(0.0), Ok(3.0)]);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn shrink(&self) -> Result<(Communicator, Vec<Rank>)> {
        // Fails the operations that are still outstanding.
        self.membership.backend.abort(
            self.membership.task,
            self.membership.member,
            "it continues with the surviving ranks".into(),
        );
        let _ = self.drain();
        let left = self.membership.backend.survivors(self.membership.task, self.membership.member)?;
        let sequence = SHRINK - self.shrunk.replace(self.shrunk.get() + 1);
        Ok((self.of_some(&left, sequence, 0)?, left))
    }
}
