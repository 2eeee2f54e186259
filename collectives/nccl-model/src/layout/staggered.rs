//! A schedule in which messages are received into buffers: a rank can receive a message before it has sent the previous one.
//!
//! ```text
//! a round of a ring       0 -> 1   1 -> 2   2 -> 3   3 -> 0        one step sends and receives
//! staggered               0 -> 1            2 -> 3                 each rank's send and receive are separate steps,
//!                                  1 -> 2            3 -> 0        so that a window of steps is a number of buffers
//! ```
//!
//! Each NCCL connection has 8 buffers (`NCCL_STEPS`), so a slow hop delays only the messages that pass over it, and not every later
//! step of the rank.

use allfold_schedules::schedule::{Permutation, Rank, Schedule, Step};

/// A schedule with every round of `S` split in two, or in three for an odd number of ranks, by the sender's rank.
#[derive(Clone, Copy, Debug)]
pub struct Staggered<S>(pub S);

impl<S: Schedule> Staggered<S> {
    fn turns(&self) -> u64 {
        2 + u64::from(self.0.ranks() % 2)
    }

    fn turn(&self, sender: Rank) -> u64 {
        let last = sender.0 + 1 == self.0.ranks() && self.0.ranks() % 2 == 1;
        if last { 2 } else { u64::from(sender.0 % 2) }
    }
}

impl<S: Schedule> Schedule for Staggered<S> {
    fn ranks(&self) -> u32 {
        self.0.ranks()
    }
    fn chunks(&self) -> u32 {
        self.0.chunks()
    }
    fn rounds(&self) -> u64 {
        self.0.rounds() * self.turns()
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let (own, turn) = (round / self.turns(), round % self.turns());
        let step = self.0.step(rank, own);
        Step {
            send: step.send.filter(|_| self.turn(rank) == turn),
            recv: step.recv.filter(|&(from, ..)| self.turn(from) == turn),
        }
    }
    fn symmetry(&self) -> Vec<Permutation> {
        if !self.0.ranks().is_multiple_of(2) {
            return Vec::new();
        }
        // A renumbering must keep even ranks even: an odd rotation does so if it is made twice.
        let even = |by: Permutation| match by {
            Permutation::Rotate(places) if places.is_multiple_of(2) => Some(by),
            Permutation::Rotate(places) => Some(Permutation::Rotate(2 * places)),
            Permutation::Xor(mask) => mask.is_multiple_of(2).then_some(by),
        };
        self.0.symmetry().into_iter().filter_map(even).collect()
    }
    fn renumbers_chunks(&self) -> bool {
        self.0.renumbers_chunks()
    }
    fn owner(&self, chunk: u32) -> Rank {
        self.0.owner(chunk)
    }
}
