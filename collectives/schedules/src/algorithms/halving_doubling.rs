//! Recursive halving: every rank exchanges halves of the data with its neighbour, then quarters with the neighbouring pair, and so
//! on. In reverse, the schedule is recursive doubling, an all-gather.
//!
//! ```text
//! 4 ranks     round 0: 0-1 2-3, halves      round 1: 0-2 1-3, quarters      then the reverse
//! ```
//!
//! Cost: 2 log2(n) rounds, 2(n-1)/n of the bytes per rank, (n-1)/n of them reduced; canonical order. If n is not a power of two,
//! the pairs add two rounds, in which the paired ranks send all their bytes.
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH",
//! Int. J. High Perform. Comput. Appl. 19 (2005), sections 4.3 and 4.5; here nearest neighbour first.

use crate::schedule::{
    Combine, FoldedToPowerOfTwo, Pairs, Permutation, Rank, Schedule, Span, Step, Then, then_reverse,
};

/// A reduce-scatter of chunks in bit-reversed order over the 2^k positions of `pairs`. A position has one chunk, or two if `blocks`
/// is set and the position has two ranks.
#[derive(Clone, Copy, Debug)]
pub struct Halving {
    pairs: Pairs,
    blocks: bool,
}

/// All-reduce: halving, followed by its reverse.
pub fn halving_doubling(ranks: u32) -> impl Schedule + Clone {
    let halving = Halving { pairs: Pairs::of(ranks), blocks: false };
    then_reverse(FoldedToPowerOfTwo::inwards(ranks, |_| halving))
}

/// Reduce-scatter by halving: every rank ends with one chunk. In reverse, the schedule is the all-gather.
pub fn halving(ranks: u32) -> impl Schedule + Clone {
    let halving = Halving { pairs: Pairs::of(ranks), blocks: true };
    Then::new(FoldedToPowerOfTwo::inwards(ranks, |_| halving), HandOver(halving))
}

impl Halving {
    /// The number of positions with two chunks among those that agree with `place` in the lowest `bits` bits.
    fn doubled(&self, place: u32, bits: u32) -> u32 {
        let low = place & ((1 << bits) - 1);
        if self.blocks { (self.pairs.pairs + (1 << bits) - 1 - low) >> bits } else { 0 }
    }

    /// The chunks that a position still has after `bits` exchanges. The lowest bits of the position, reversed, are the highest bits
    /// of the first chunk's number.
    fn left(&self, place: u32, bits: u32) -> Span {
        let (levels, len) = (self.pairs.levels(), self.pairs.core >> bits);
        let reversed = place.reverse_bits().checked_shr(u32::BITS - levels).unwrap_or(0);
        let before = |bit: u32| self.doubled(place & !(1 << bit), bit + 1);
        let more: u32 = match self.blocks {
            true => (0..bits).filter(|bit| place >> bit & 1 == 1).map(before).sum(),
            false => 0,
        };
        Span::data((reversed & !(len - 1)) + more, len + self.doubled(place, bits))
    }
}

impl Schedule for Halving {
    fn ranks(&self) -> u32 {
        1 << self.pairs.levels()
    }
    fn chunks(&self) -> u32 {
        self.left(0, 0).chunks
    }
    fn rounds(&self) -> u64 {
        u64::from(self.pairs.levels())
    }
    fn step(&self, Rank(place): Rank, round: u64) -> Step {
        let peer = place ^ (1 << round);
        let bits = round as u32 + 1;
        Step {
            send: Some((Rank(peer), self.left(peer, bits))),
            recv: Some((Rank(peer), self.left(place, bits), Combine::Reduce)),
        }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        (0..self.pairs.levels()).map(|bit| Permutation::Xor(1 << bit)).collect()
    }
    fn owner(&self, chunk: u32) -> Rank {
        let levels = self.pairs.levels();
        let past = |place, bit: u32| self.left(place | 1 << bit, bit + 1).first_chunk <= chunk;
        Rank((0..levels).fold(0, |place, bit| if past(place, bit) { place | 1 << bit } else { place }))
    }
}

/// A round in which the even rank of each pair, which acted for both ranks, sends the odd rank the odd rank's chunk.
#[derive(Clone, Copy, Debug)]
struct HandOver(Halving);

impl Schedule for HandOver {
    fn ranks(&self) -> u32 {
        self.0.pairs.ranks
    }
    fn chunks(&self) -> u32 {
        self.0.chunks()
    }
    fn rounds(&self) -> u64 {
        u64::from(self.0.pairs.pairs > 0)
    }
    fn step(&self, Rank(rank): Rank, _round: u64) -> Step {
        let Some(partner) = self.0.pairs.partner(rank) else { return Step::IDLE };
        let odd = self.0.left(self.0.pairs.place(rank), self.0.pairs.levels()).first_chunk + 1;
        match rank % 2 {
            0 => Step { send: Some((Rank(partner), Span::data(odd, 1))), recv: None },
            _ => Step { send: None, recv: Some((Rank(partner), Span::data(odd, 1), Combine::Copy)) },
        }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        self.0.symmetry()
    }
    fn owner(&self, chunk: u32) -> Rank {
        let place = self.0.owner(chunk).0;
        let second = chunk - self.0.left(place, self.0.pairs.levels()).first_chunk;
        Rank(self.0.pairs.first(place) + second)
    }
}
