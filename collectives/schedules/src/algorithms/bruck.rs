//! Bruck's algorithms: ceil(log2 n) messages per rank for any number of ranks, with additional local copies.
//!
//! ```text
//! all-gather, 5 ranks     r collects blocks in a row, its own block first, and receives from
//!                         r+1 (1 block), r+2 (2 blocks), r+4 (1 block); at the end it rotates the row into place
//! all-to-all              the block for rank r+j moves by the bits of j: 1, 2, 4, .. ranks ahead
//! ```
//!
//! Cost of an all-gather: ceil(log2 n) messages, (n-1)/n of the bytes. Cost of an all-to-all: ceil(log2 n) messages, about
//! log2(n)/2 times the bytes, about 3n local copies. For small buffers.
//! Source: J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal and D. Weathersby, "Efficient algorithms for all-to-all
//! communications in multiport message-passing systems", IEEE Trans. Parallel Distrib. Syst. 8 (1997).

use crate::schedule::{Combine, Rank, Schedule, Span, Step};

/// The number of messages that a rank sends: the number of bits of n-1.
fn messages(ranks: u32) -> u32 {
    u32::BITS - (ranks - 1).leading_zeros()
}

/// A local copy from one span to another; an idle step for an empty span.
fn copy(rank: u32, from: Span, into: Span) -> Step {
    if from.chunks == 0 { Step::IDLE } else { Step::local(Rank(rank), from, into, Combine::Copy) }
}

/// All-gather over this many ranks. Block r+j is stored in scratch copy 0 at index j.
#[derive(Clone, Copy, Debug)]
pub struct BruckAllGather(pub u32);

impl Schedule for BruckAllGather {
    fn ranks(&self) -> u32 {
        self.0
    }
    fn chunks(&self) -> u32 {
        self.0
    }
    fn rounds(&self) -> u64 {
        if self.0 == 1 { 0 } else { u64::from(messages(self.0)) + 3 }
    }
    fn step(&self, Rank(rank): Rank, round: u64) -> Step {
        let (n, round, messages) = (self.0, round as u32, messages(self.0));
        if round == 0 {
            copy(rank, Span::data(rank, 1), Span::scratch(0, 0, 1))
        } else if round <= messages {
            let have = 1 << (round - 1);
            let len = have.min(n - have);
            let (to, from) = (Rank((rank + n - have) % n), Rank((rank + have) % n));
            Step {
                send: Some((to, Span::scratch(0, 0, len))),
                recv: Some((from, Span::scratch(0, have, len), Combine::Copy)),
            }
        } else if round == messages + 1 {
            copy(rank, Span::scratch(0, 0, n - rank), Span::data(rank, n - rank))
        } else {
            copy(rank, Span::scratch(0, n - rank, rank), Span::data(0, rank))
        }
    }
}

/// All-to-all over this many ranks. The block to or from the rank at distance j is stored in scratch copy 0 at index j; scratch copy 1
/// packs blocks that are sent together.
#[derive(Clone, Copy, Debug)]
pub struct BruckAllToAll(pub u32);

impl BruckAllToAll {
    /// The number of runs of consecutive j < n that have bit `bit` set.
    fn runs(&self, bit: u32) -> u64 {
        (u64::from(self.0) + (1 << bit) - 1) >> (bit + 1)
    }

    /// The run number `nth` for bit `bit`: its start, its index in the packed copy, its length.
    fn run(&self, bit: u32, nth: u32) -> (u32, u32, u32) {
        let (at, packed) = ((2 * nth + 1) << bit, nth << bit);
        (at, packed, (1 << bit).min(self.0 - at))
    }

    /// The step of a round for bit `bit`: pack, exchange or unpack. The round is counted from the first round for this bit.
    fn travel(&self, rank: u32, bit: u32, round: u64) -> Step {
        let (n, runs, far) = (self.0, self.runs(bit), 1 << bit);
        if round == runs {
            let (_, packed, len) = self.run(bit, runs as u32 - 1);
            let all = Span::scratch(1, 0, packed + len);
            let (to, from) = (Rank((rank + far) % n), Rank((rank + n - far) % n));
            return Step { send: Some((to, all)), recv: Some((from, all, Combine::Copy)) };
        }
        let (at, packed, len) = self.run(bit, if round < runs { round } else { round - runs - 1 } as u32);
        let (row, pack) = (Span::scratch(0, at, len), Span::scratch(1, packed, len));
        if round < runs { copy(rank, row, pack) } else { copy(rank, pack, row) }
    }
}

impl Schedule for BruckAllToAll {
    fn ranks(&self) -> u32 {
        self.0
    }
    fn chunks(&self) -> u32 {
        self.0
    }
    fn rounds(&self) -> u64 {
        if self.0 == 1 {
            return 0;
        }
        let travel: u64 = (0..messages(self.0)).map(|bit| 2 * self.runs(bit) + 1).sum();
        2 + travel + u64::from(self.0) - 1
    }
    fn step(&self, Rank(rank): Rank, round: u64) -> Step {
        let n = self.0;
        match round {
            0 => return copy(rank, Span::data(rank, n - rank), Span::scratch(0, 0, n - rank)),
            1 => return copy(rank, Span::data(0, rank), Span::scratch(0, n - rank, rank)),
            _ => {}
        }
        let mut round = round - 2;
        for bit in 0..messages(n) {
            let rounds = 2 * self.runs(bit) + 1;
            if round < rounds {
                return self.travel(rank, bit, round);
            }
            round -= rounds;
        }
        let away = round as u32 + 1;
        copy(rank, Span::scratch(0, away, 1), Span::data((rank + n - away) % n, 1))
    }
}
