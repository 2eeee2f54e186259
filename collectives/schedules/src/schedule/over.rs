//! A schedule within each group of consecutive ranks, followed by another schedule across the groups.
//!
//! ```text
//! 8 ranks in groups of 4     inside:   0 1 2 3 | 4 5 6 7     a reduce-scatter: each rank ends with a quarter
//!                            across:   0-4  1-5  2-6  3-7    each quarter among the ranks that ended with it
//! ```
//!
//! With a reduce-scatter inside and across, the whole is a reduce-scatter; followed by its reverse, the hierarchical all-reduce.
//! With a reduction to one rank of each group inside, only those ranks take part across.

use super::{Permutation, Rank, Schedule, Step};

/// The schedule `inside` in each group, then the schedule `across` the groups: each chunk is exchanged among the ranks that own it
/// after `inside`.
#[derive(Clone, Debug)]
pub struct Over<A, B> {
    inside: A,
    across: B,
    /// For each position in a group: the chunk that its rank owns after `inside`, if any.
    owned: Vec<Option<u32>>,
}

impl<A: Schedule, B: Schedule> Over<A, B> {
    /// `across.ranks()` groups of `inside.ranks()` consecutive ranks each. No rank of a group may own two chunks after `inside`.
    ///
    /// # Panics
    /// A rank of a group owns two chunks.
    pub fn new(inside: A, across: B) -> Over<A, B> {
        let mut owned = vec![None; inside.ranks() as usize];
        for chunk in 0..inside.chunks() {
            let before = owned[inside.owner(chunk).index()].replace(chunk);
            assert_eq!(before, None, "inside a group every chunk has an owner of its own");
        }
        Over { inside, across, owned }
    }
}

impl<A: Schedule, B: Schedule> Schedule for Over<A, B> {
    fn ranks(&self) -> u32 {
        self.inside.ranks() * self.across.ranks()
    }
    fn chunks(&self) -> u32 {
        self.inside.chunks() * self.across.chunks()
    }
    fn rounds(&self) -> u64 {
        self.inside.rounds() + self.across.rounds()
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let (size, pieces) = (self.inside.ranks(), self.across.chunks());
        let (group, place) = (rank.0 / size, rank.0 % size);
        match (round.checked_sub(self.inside.rounds()), self.owned[place as usize]) {
            (None, _) => {
                let step = self.inside.step(Rank(place), round);
                step.map(|peer| Rank(group * size + peer.0), |span| span.refined(pieces, 0))
            }
            (Some(later), Some(chunk)) => {
                let step = self.across.step(Rank(group), later);
                step.map(|peer| Rank(peer.0 * size + place), |span| span.refined(1, chunk * pieces))
            }
            (Some(_), None) => Step::IDLE,
        }
    }
    /// Renumberings of the groups, and renumberings of the positions in a group that apply to all groups: by xor, or by rotation if
    /// there is one group.
    fn symmetry(&self) -> Vec<Permutation> {
        let size = self.inside.ranks();
        let binary = self.ranks().is_power_of_two();
        let inside = self.inside.symmetry().into_iter().filter(|by| match by {
            Permutation::Xor(_) => binary,
            Permutation::Rotate(_) => self.across.ranks() == 1,
        });
        let across = self.across.symmetry().into_iter().filter_map(|by| match by {
            Permutation::Xor(mask) => binary.then_some(Permutation::Xor(mask * size)),
            Permutation::Rotate(groups) => Some(Permutation::Rotate(groups * size)),
        });
        inside.chain(across).collect()
    }
    fn lanes(&self) -> u32 {
        self.inside.lanes().max(self.across.lanes())
    }
    fn lane(&self, round: u64) -> u32 {
        match round.checked_sub(self.inside.rounds()) {
            None => self.inside.lane(round),
            Some(later) => self.across.lane(later),
        }
    }
    fn stride(&self) -> u64 {
        match (self.inside.stride(), self.across.stride()) {
            (0, _) | (_, 0) => 0,
            (inside, across) => inside.max(across),
        }
    }
    fn owner(&self, chunk: u32) -> Rank {
        let pieces = self.across.chunks();
        let (place, group) = (self.inside.owner(chunk / pieces), self.across.owner(chunk % pieces));
        Rank(group.0 * self.inside.ranks() + place.0)
    }
}
