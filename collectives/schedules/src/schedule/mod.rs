//! A collective as a pure function: what each rank does in each round.
//!
//! A [`Schedule`] does no I/O, reads no clock and stores nothing per rank, so a ring over 100,000 ranks costs a
//! few bytes. Everything else in Allfold interprets one: the checkers prove it, the simulator times it, the
//! executor runs it on real data.

mod lanes;
mod msccl;
mod over;
mod power_of_two;
mod reverse;
mod segments;
mod step;
mod symmetry;
mod table;
mod then;

pub use allfold_base::Rank;
pub use lanes::Lanes;
pub use over::Over;
pub use power_of_two::{FoldedToPowerOfTwo, Pairs};
pub use reverse::{Reverse, then_reverse};
pub use segments::Segments;
pub use step::{Access, Combine, Region, Span, Step};
pub use symmetry::Permutation;
pub use table::{ScheduleTable, ScheduleTableError};
pub use then::Then;

use std::ops::Range;

/// A collective algorithm for a given number of ranks. The execution rule that every interpreter follows is in
/// `docs/ARCHITECTURE.md`; in one line: a rank issues its steps in order within a window, and a step starts as
/// soon as nothing earlier and unfinished touches what it touches.
pub trait Schedule: Send + Sync {
    /// Number of ranks, 1 or more.
    fn ranks(&self) -> u32;

    /// The buffer is cut into this many near-equal chunks; 1 or more.
    fn chunks(&self) -> u32;

    /// Number of rounds; 0 where there is nothing to do.
    fn rounds(&self) -> u64;

    /// What `rank` does in `round` (below [`Schedule::rounds`]).
    fn step(&self, rank: Rank, round: u64) -> Step;

    /// Rounds outside which `rank` is idle. The default is all of them; a sparse schedule names a short range,
    /// which makes [`Schedule::next`] cheap.
    fn active(&self, _rank: Rank) -> Range<u64> {
        0..self.rounds()
    }

    /// The first round from `round` on in which `rank` acts. The default scans [`Schedule::active`].
    fn next(&self, rank: Rank, round: u64) -> Option<u64> {
        let active = self.active(rank);
        (round.max(active.start)..active.end).find(|&at| !self.step(rank, at).is_idle())
    }

    /// Generators of the renumberings that map the schedule to itself; empty where none is known.
    fn symmetry(&self) -> Vec<Permutation> {
        Vec::new()
    }

    /// How many lanes (channels) the rounds belong to. Messages between two ranks keep their order within a lane.
    fn lanes(&self) -> u32 {
        1
    }

    /// The lane of a round, below [`Schedule::lanes`].
    fn lane(&self, _round: u64) -> u32 {
        0
    }

    /// Into how many pieces every chunk is cut; each piece goes through the whole algorithm by itself.
    fn segments(&self) -> u32 {
        1
    }

    /// Rounds from the start of one segment to the start of the next when this schedule is segmented: 0 goes
    /// round by round through all segments; a pipeline names the fewest rounds that keep a rank's ports free.
    fn stride(&self) -> u64 {
        0
    }

    /// The parts of a schedule that sends piece after piece through one schedule; `None` for any other. An interpreter
    /// asks once what a rank does with one piece, instead of once per piece.
    fn pipeline(&self) -> Option<Pipeline<'_>> {
        None
    }

    /// How many lanes run one and the same schedule, each on its own share of the chunks, and that schedule. All of
    /// them do the same at the same time. `None` where lanes differ.
    fn replicated_lanes(&self) -> Option<(u32, &dyn Schedule)> {
        None
    }

    /// The rank whose block a chunk belongs to: the rank that gives the chunk to an all-gather, and that ends with it
    /// after a reduce-scatter. By default rank r's block is the r-th near-equal share of the chunks.
    fn owner(&self, chunk: u32) -> Rank {
        let (chunk, ranks, chunks) = (u64::from(chunk), u64::from(self.ranks()), u64::from(self.chunks()));
        Rank((chunk * ranks / chunks) as u32)
    }
}

/// A schedule of pieces that follow each other: piece p does round i of `of` in round `i * pieces + p * lap`.
#[derive(Clone, Copy)]
pub struct Pipeline<'a> {
    /// The schedule that every piece goes through.
    pub of: &'a dyn Schedule,
    /// Number of pieces.
    pub pieces: u64,
    /// Rounds from a step of one piece to the same step of the next piece.
    pub lap: u64,
}

/// A pointer to a schedule is a schedule.
macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<S: Schedule + ?Sized> Schedule for $pointer {
            fn ranks(&self) -> u32 {
                (**self).ranks()
            }
            fn chunks(&self) -> u32 {
                (**self).chunks()
            }
            fn rounds(&self) -> u64 {
                (**self).rounds()
            }
            fn step(&self, rank: Rank, round: u64) -> Step {
                (**self).step(rank, round)
            }
            fn active(&self, rank: Rank) -> Range<u64> {
                (**self).active(rank)
            }
            fn next(&self, rank: Rank, round: u64) -> Option<u64> {
                (**self).next(rank, round)
            }
            fn symmetry(&self) -> Vec<Permutation> {
                (**self).symmetry()
            }
            fn lanes(&self) -> u32 {
                (**self).lanes()
            }
            fn lane(&self, round: u64) -> u32 {
                (**self).lane(round)
            }
            fn segments(&self) -> u32 {
                (**self).segments()
            }
            fn stride(&self) -> u64 {
                (**self).stride()
            }
            fn pipeline(&self) -> Option<Pipeline<'_>> {
                (**self).pipeline()
            }
            fn replicated_lanes(&self) -> Option<(u32, &dyn Schedule)> {
                (**self).replicated_lanes()
            }
            fn owner(&self, chunk: u32) -> Rank {
                (**self).owner(chunk)
            }
        }
    )*};
}

forward!(&S, Box<S>, std::sync::Arc<S>);
