//! Splitting a communicator into smaller ones.

use super::{Communicator, expect, in_place};
use crate::{Collective, Element, Error, Operation, Rank, Result};
use std::collections::BTreeSet;

impl Communicator {
    /// Makes one communicator per `color` from the ranks that pass it, numbered by `key` and, for equal keys, by their ranks here.
    /// A rank that passes no color gets no communicator. Every rank must call it.
    ///
    /// The new communicators have this communicator's plan. Dropping a communicator ends its communication thread and, on threads and
    /// over TCP, frees the memory of its group on this rank. On virtual time and over MPI the group itself, some hundreds of bytes per
    /// rank, is retained until the run ends: MPI frees a communicator only when all its ranks request it together.
    ///
    /// # Errors
    /// The errors of the group; [`crate::Error::System`] where the system has no descriptors left for the new group.
    pub fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Communicator>> {
        let mine = [i64::from(color.is_some()), i64::from(color.unwrap_or(0)), i64::from(key)];
        let mut wishes = vec![0i64; 3 * self.size() as usize];
        let sequence = self.gather_choices(&mine, &mut wishes)?;
        let Some(color) = color else { return Ok(None) };

        let mut members: Vec<(i64, Rank)> = (0..self.size())
            .zip(wishes.chunks_exact(3))
            .filter(|(_, wish)| wish[0] == 1 && wish[1] == i64::from(color))
            .map(|(rank, wish)| (wish[2], Rank(rank)))
            .collect();
        members.sort();
        let members: Vec<Rank> = members.into_iter().map(|(_, rank)| rank).collect();
        let mut smaller = self.of_some(&members, sequence, color)?;
        if self.membership.sync_segment.get().is_some() {
            smaller.share_memory()?;
        }
        Ok(Some(smaller))
    }

    /// Makes a communicator of the ranks `members`, in the order of the list. Only these ranks call this, all with the same list and
    /// name. A name may be used once; its lower 62 bits count. Nothing is sent. The new communicator has this communicator's plan.
    ///
    /// # Errors
    /// [`Error::Argument`] where this rank is not in the list, or the list names a rank twice or one outside the group;
    /// [`Error::System`] where the system has no descriptors left for the new group.
    pub fn subgroup(&self, members: &[Rank], name: u64) -> Result<Communicator> {
        let wrong = |what: String| Err(Error::Argument(what));
        let distinct: BTreeSet<Rank> = members.iter().copied().collect();
        if distinct.len() != members.len() {
            return wrong(format!("a group of {} names a rank twice", Rank::list(members)));
        }
        if let Some(outside) = distinct.iter().find(|rank| rank.0 >= self.size()) {
            let last = self.size() - 1;
            return wrong(format!("rank {outside} is outside the group: its ranks are 0 to {last}"));
        }
        if !distinct.contains(&self.rank()) {
            return wrong(format!(
                "rank {} cannot make a group of {}: it is not in the list; only the listed ranks call this",
                self.rank(),
                Rank::list(members)
            ));
        }
        // The number is in a range that neither operations nor shrunk groups reach.
        self.of_some(members, 1 << 62 | name & ((1 << 62) - 1), 0)
    }

    /// The communicator of these ranks, which all call this with one number and color. It has this communicator's plan.
    pub(super) fn of_some(&self, members: &[Rank], sequence: u64, color: u32) -> Result<Communicator> {
        let membership = self.membership.subgroup(members, sequence, color)?;
        Ok(Communicator::new(membership, self.plan).at(self.owner.clone()))
    }

    /// An all-gather whose call names a split, so that a rank that makes another call gets a mismatch. Returns its sequence number.
    fn gather_choices<T: Element>(&self, block: &[T], all: &mut [T]) -> Result<u64> {
        expect("the table of a split", all.len(), self.times(block.len())?)?;
        let mut request = self.request::<T>(Collective::AllGather, block.len());
        request.operation = Operation::Split;
        all[self.block(block.len())].copy_from_slice(block);
        self.numbered(request, in_place(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReduceOp, World};
    use allfold_sim::Topology;

    #[test]
    fn some_ranks_make_a_group_without_the_others() {
        let sim = Topology::named("nodes8", 4).unwrap();
        for world in [World::threads(4).any(), World::tcp(4).any(), World::sim(&sim).any()] {
            let sums = world.run(|comm: Communicator| -> Result<i64> {
                let refused = comm.subgroup(&[Rank(9), comm.rank()], 1).map(drop);
                assert!(matches!(refused, Err(Error::Argument(_))));
                if comm.rank() == Rank(3) {
                    return Ok(0);
                }
                let mut total = 0;
                for name in [5, 1 << 40] {
                    let group = comm.subgroup(&[Rank(2), Rank(0), Rank(1)], name)?;
                    assert_eq!(group.rank(), Rank((comm.rank().0 + 1) % 3));
                    assert_eq!(group.membership.world.as_deref(), Some(&[Rank(2), Rank(0), Rank(1)][..]));
                    let mut sum = [i64::from(comm.rank().0)];
                    group.all_reduce(&mut sum, ReduceOp::Sum)?;
                    total += sum[0];
                }
                Ok(total)
            });
            assert_eq!(sums, Ok(vec![6, 6, 6, 0]));
        }
    }
}
