//! Runs a schedule that needs a power of two of ranks on any number of ranks: the first n - 2^k pairs act as one rank each.
//!
//! ```text
//! 6 ranks    (0 1) (2 3)  4  5        round 0: odd ranks of the pairs are reduced into the even ones
//!              0     1    2  3        then the schedule on 4; finally, on request, the even ranks send the result to the odd ones
//! ```
//!
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH",
//! Int. J. High Perform. Comput. Appl. 19 (2005), section 4.5.

use super::{Combine, Permutation, Rank, Schedule, Span, Step};

/// The mapping of n ranks to the positions of a power of two, where the first ranks share positions in pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairs {
    /// The number of ranks, n.
    pub ranks: u32,
    /// The largest power of two up to n, 2^k: the number of positions.
    pub core: u32,
    /// The number of pairs, n - 2^k.
    pub pairs: u32,
}

impl Pairs {
    /// The pairs for `ranks` ranks, 1 or more.
    pub const fn of(ranks: u32) -> Pairs {
        let core = 1 << ranks.ilog2();
        Pairs { ranks, core, pairs: ranks - core }
    }

    /// The base-2 logarithm of the number of positions.
    pub const fn levels(self) -> u32 {
        self.core.ilog2()
    }

    /// The position of a rank.
    pub const fn place(self, rank: u32) -> u32 {
        if rank < 2 * self.pairs { rank / 2 } else { rank - self.pairs }
    }

    /// The first rank at a position; n for the position after the last one.
    pub const fn first(self, place: u32) -> u32 {
        if place < self.pairs { 2 * place } else { place + self.pairs }
    }

    /// The other rank of a rank's pair; `None` if the rank is in no pair.
    pub const fn partner(self, rank: u32) -> Option<u32> {
        if rank < 2 * self.pairs { Some(rank ^ 1) } else { None }
    }
}

/// A schedule for a power of two of ranks, run by any number of ranks.
#[derive(Clone, Copy, Debug)]
pub struct FoldedToPowerOfTwo<S> {
    of: S,
    pairs: Pairs,
    /// Whether the odd ranks of the pairs receive the result at the end.
    unfold: bool,
}

impl<S: Schedule> FoldedToPowerOfTwo<S> {
    /// The schedule `of(2^k)`, in which the even rank of each pair acts for both. Its reverse sends the result to the odd ranks.
    pub fn inwards(ranks: u32, of: impl FnOnce(u32) -> S) -> FoldedToPowerOfTwo<S> {
        let pairs = Pairs::of(ranks);
        FoldedToPowerOfTwo { of: of(pairs.core), pairs, unfold: false }
    }

    /// The schedule `of(2^k)`, after which the even rank of each pair sends the whole result to the odd rank.
    pub fn and_back(ranks: u32, of: impl FnOnce(u32) -> S) -> FoldedToPowerOfTwo<S> {
        FoldedToPowerOfTwo { unfold: true, ..FoldedToPowerOfTwo::inwards(ranks, of) }
    }

    fn extra(&self) -> u64 {
        u64::from(self.pairs.pairs > 0)
    }

    fn everything(&self) -> Span {
        Span::data(0, self.chunks())
    }
}

impl<S: Schedule> Schedule for FoldedToPowerOfTwo<S> {
    fn ranks(&self) -> u32 {
        self.pairs.ranks
    }
    fn chunks(&self) -> u32 {
        self.of.chunks()
    }
    fn rounds(&self) -> u64 {
        self.extra() + self.of.rounds() + if self.unfold { self.extra() } else { 0 }
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let partner = self.pairs.partner(rank.0).map(Rank);
        let partner_if = |odd: bool| partner.filter(|_| (rank.0 % 2 == 1) == odd);
        if round < self.extra() {
            let send = partner_if(true).map(|even| (even, self.everything()));
            Step { send, recv: partner_if(false).map(|odd| (odd, self.everything(), Combine::Reduce)) }
        } else if round - self.extra() < self.of.rounds() {
            if partner_if(true).is_some() {
                return Step::IDLE;
            }
            let place = Rank(self.pairs.place(rank.0));
            let step = self.of.step(place, round - self.extra());
            step.map(|place| Rank(self.pairs.first(place.0)), |span| span)
        } else {
            let send = partner_if(false).map(|odd| (odd, self.everything()));
            Step { send, recv: partner_if(true).map(|even| (even, self.everything(), Combine::Copy)) }
        }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        if self.pairs.pairs == 0 { self.of.symmetry() } else { Vec::new() }
    }
    fn owner(&self, chunk: u32) -> Rank {
        Rank(self.pairs.first(self.of.owner(chunk).0))
    }
}
