//! Visits the steps of all ranks round by round and skips empty rounds.

use crate::schedule::{Rank, Schedule, Step};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Calls `visit` with every round in which a rank acts, and the steps of that round in order of ranks.
///
/// # Errors
/// The first error that `visit` returns.
pub fn walk<E>(
    schedule: &(impl Schedule + ?Sized),
    mut visit: impl FnMut(u64, &[(Rank, Step)]) -> Result<(), E>,
) -> Result<(), E> {
    let ahead = |rank: Rank, from| Some(Reverse((schedule.next(rank, from)?, rank)));
    let mut due: BinaryHeap<_> = (0..schedule.ranks()).filter_map(|rank| ahead(Rank(rank), 0)).collect();
    let mut acting = Vec::new();
    while let Some(&Reverse((round, _))) = due.peek() {
        acting.clear();
        while let Some(&Reverse((at, rank))) = due.peek()
            && at == round
        {
            acting.push((rank, schedule.step(rank, round)));
            due.pop();
            due.extend(ahead(rank, round + 1));
        }
        visit(round, &acting)?;
    }
    Ok(())
}
