//! Splitting a communicator into smaller ones.

use super::{Communicator, expect, in_place};
use crate::backends::{GroupKey, Member};
use crate::{Collective, Element, Operation, Rank, Result};

impl Communicator {
    /// Makes one communicator per `color` from the ranks that pass it, numbered by `key` and, for equal keys, by their ranks here.
    /// A rank that passes no color gets no communicator. Every rank must call it.
    ///
    /// The new communicators have this one's plan. Dropping one ends its communication thread and, on threads and over TCP,
    /// frees what its group holds on this rank. On virtual time and over MPI the group itself, some hundreds of bytes per rank,
    /// is kept until the run ends: MPI frees a communicator only when all its ranks ask together.
    ///
    /// # Errors
    /// Those of the group; [`crate::Error::System`] where the system has no descriptors left for the new group.
    pub fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Communicator>> {
        let mine = [i64::from(color.is_some()), i64::from(color.unwrap_or(0)), i64::from(key)];
        let mut wishes = vec![0i64; 3 * self.size() as usize];
        let sequence = self.gather_wishes(&mine, &mut wishes)?;
        let Some(color) = color else { return Ok(None) };

        let mut members: Vec<(i64, Rank)> = (0..self.size())
            .zip(wishes.chunks_exact(3))
            .filter(|(_, wish)| wish[0] == 1 && wish[1] == i64::from(color))
            .map(|(rank, wish)| (wish[2], Rank(rank)))
            .collect();
        members.sort();
        let members: Vec<Rank> = members.into_iter().map(|(_, rank)| rank).collect();
        let place = members.iter().position(|rank| *rank == self.rank()).unwrap_or_default();

        let key = GroupKey { parent: self.membership.member.group, sequence, color };
        let group = self.membership.backend.subgroup(key, &members)?;
        let member = Member { group, rank: Rank(place as u32) };
        let membership = self.membership.subgroup_of(member, members.len() as u32, key.sequence, color);
        let mut smaller = Communicator::new(membership, self.plan).at(self.owner.clone());
        if self.membership.sync_segment.get().is_some() {
            smaller.share_memory()?;
        }
        Ok(Some(smaller))
    }

    /// An all-gather that ranks know as a split. Returns its number in the sequence.
    fn gather_wishes<T: Element>(&self, block: &[T], all: &mut [T]) -> Result<u64> {
        expect("the table of a split", all.len(), self.times(block.len())?)?;
        let mut request = self.request::<T>(Collective::AllGather, block.len());
        request.operation = Operation::Split;
        all[self.block(block.len())].copy_from_slice(block);
        self.numbered(request, in_place(all))
    }
}
