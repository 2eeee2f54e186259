//! A collective algorithm as a pure function: what each rank does in each round.
//!
//! A [`Schedule`] does no I/O, reads no clock and stores nothing per rank, so a ring over 100,000 ranks takes a few bytes. The rest
//! of Allfold interprets schedules: the checkers prove them, the simulator times them, the executor runs them on real data.

mod lanes;
mod msccl;
mod over;
mod power_of_two;
mod reverse;
mod rotated;
mod segments;
mod step;
mod symmetry;
mod table;
mod then;

pub use allfold_base::Rank;
pub use lanes::{Lanes, MirroredLanes};
pub use over::Over;
pub use power_of_two::{FoldedToPowerOfTwo, Pairs};
pub use reverse::{Reverse, then_reverse};
pub use rotated::{Rotated, over_nics};
pub use segments::Segments;
pub use step::{Access, Combine, Region, Span, Step};
pub use symmetry::Permutation;
pub use table::{ScheduleTable, ScheduleTableError};
pub use then::Then;

use std::ops::Range;

/// A collective algorithm for a given number of ranks. All interpreters follow the execution rule of `docs/ARCHITECTURE.md`; in
/// short: a rank issues its steps in order within a window, and a step starts as soon as no earlier unfinished step conflicts with
/// it ([`Access::conflicts`]).
pub trait Schedule: Send + Sync {
    /// The number of ranks, 1 or more.
    fn ranks(&self) -> u32;

    /// The number of near-equal chunks into which the buffer is cut; 1 or more.
    fn chunks(&self) -> u32;

    /// The number of rounds; 0 for a schedule without steps.
    fn rounds(&self) -> u64;

    /// The step of `rank` in `round`, which must be below [`Schedule::rounds`].
    fn step(&self, rank: Rank, round: u64) -> Step;

    /// A range of rounds outside which `rank` is idle; by default all rounds. A short range makes [`Schedule::next`] cheap for
    /// sparse schedules.
    fn active(&self, _rank: Rank) -> Range<u64> {
        0..self.rounds()
    }

    /// The first round from `round` on in which `rank` has a step. The default scans [`Schedule::active`].
    fn next(&self, rank: Rank, round: u64) -> Option<u64> {
        let active = self.active(rank);
        (round.max(active.start)..active.end).find(|&at| !self.step(rank, at).is_idle())
    }

    /// Generators of the renumberings of ranks that map the schedule to itself; empty if none is known.
    fn symmetry(&self) -> Vec<Permutation> {
        Vec::new()
    }

    /// Whether the renumberings of [`Schedule::symmetry`] also renumber the chunks, one to one and within data and scratch: then two
    /// steps of a rank conflict where those of its image do, and windows of several steps keep the symmetry. For schedules whose
    /// steps have one chunk each.
    fn renumbers_chunks(&self) -> bool {
        false
    }

    /// The number of lanes (channels) of the schedule. Messages between two ranks keep their order within a lane.
    fn lanes(&self) -> u32 {
        1
    }

    /// The lane of a round, below [`Schedule::lanes`].
    fn lane(&self, _round: u64) -> u32 {
        0
    }

    /// The number of segments into which every chunk is cut; each segment is processed by the whole algorithm separately.
    fn segments(&self) -> u32 {
        1
    }

    /// The number of rounds from the start of one segment to the start of the next if this schedule is cut into segments. With 0,
    /// each round is done for all segments before the next round; a pipeline returns the fewest rounds that keep a rank's ports
    /// free.
    fn stride(&self) -> u64 {
        0
    }

    /// The parts of a schedule that sends many pieces through one schedule; `None` for any other schedule. With these parts, an
    /// interpreter can compute a rank's steps for one piece only.
    fn pipeline(&self) -> Option<Pipeline<'_>> {
        None
    }

    /// The number of lanes and their schedule, if all lanes run the same schedule on equal shares of the chunks and therefore at the same
    /// times; `None` otherwise.
    fn replicated_lanes(&self) -> Option<(u32, &dyn Schedule)> {
        None
    }

    /// One of the schedule's two lanes, if the other is its mirror image and has an equal share of the chunks; `None` otherwise.
    fn mirrored_lanes(&self) -> Option<MirroredLanes<'_>> {
        None
    }

    /// The rank that owns a chunk: the rank that contributes the chunk to an all-gather, and that ends with the chunk after a
    /// reduce-scatter. By default rank r owns the r-th near-equal share of the chunks.
    fn owner(&self, chunk: u32) -> Rank {
        let (chunk, ranks, chunks) = (u64::from(chunk), u64::from(self.ranks()), u64::from(self.chunks()));
        Rank((chunk * ranks / chunks) as u32)
    }
}

/// A schedule of pieces that follow each other: piece p does round i of `of` in round `i * pieces + p * lap`.
#[derive(Clone, Copy)]
pub struct Pipeline<'a> {
    /// The schedule of every piece.
    pub of: &'a dyn Schedule,
    /// The number of pieces.
    pub pieces: u64,
    /// The number of rounds from a step of one piece to the same step of the next piece.
    pub lap: u64,
}

/// Implements `Schedule` for pointers to a schedule.
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
            fn renumbers_chunks(&self) -> bool {
                (**self).renumbers_chunks()
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
            fn mirrored_lanes(&self) -> Option<MirroredLanes<'_>> {
                (**self).mirrored_lanes()
            }
            fn owner(&self, chunk: u32) -> Rank {
                (**self).owner(chunk)
            }
        }
    )*};
}

forward!(&S, Box<S>, std::sync::Arc<S>);
