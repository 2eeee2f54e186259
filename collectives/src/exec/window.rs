//! The window: the issued and unfinished steps of a rank, and the conflicts between them.

use crate::Rank;
use crate::schedule::{Schedule, Step};
use crate::transport::Payload;
use std::collections::VecDeque;

/// One half of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// Not posted yet.
    Due,
    /// Posted.
    Posted,
    /// Finished, or the step has no such half.
    Done,
}

/// A step in the window.
pub(super) struct Slot {
    pub round: u64,
    pub lane: u32,
    pub step: Step,
    /// Number of earlier unfinished steps that conflict with this one.
    pub blockers: u32,
    /// Whether the step has started: no earlier unfinished step conflicts, and the data to send are copied unless they are sent in place.
    pub started: bool,
    pub payload: Option<Payload>,
    pub send: Half,
    pub recv: Half,
    finished: bool,
}

impl Slot {
    pub fn sends_on(&self, peer: Rank, on: u32) -> bool {
        self.send == Half::Posted && self.lane == on && self.step.send.is_some_and(|(to, _)| to == peer)
    }

    pub fn receives_on(&self, peer: Rank, on: u32) -> bool {
        self.recv == Half::Posted && self.lane == on && self.step.recv.is_some_and(|(from, ..)| from == peer)
    }
}

/// At most `width` steps from the oldest unfinished one on, in the order of the program.
pub(super) struct Window<'a> {
    schedule: &'a dyn Schedule,
    rank: Rank,
    width: usize,
    next: u64,
    slots: VecDeque<Slot>,
}

impl<'a> Window<'a> {
    pub fn new(schedule: &'a dyn Schedule, rank: Rank, width: u32) -> Window<'a> {
        Window { schedule, rank, width: width.max(1) as usize, next: 0, slots: VecDeque::new() }
    }

    /// Issues steps up to the window's width. Returns the round of the oldest unfinished step; `None`: all done.
    pub fn issue(&mut self) -> Option<u64> {
        while self.slots.len() < self.width && self.next < self.schedule.rounds() {
            let Some(round) = self.schedule.next(self.rank, self.next) else {
                self.next = self.schedule.rounds();
                break;
            };
            self.next = round + 1;
            let step = self.schedule.step(self.rank, round);
            if step.is_idle() {
                continue;
            }
            let earlier = self.slots.iter().filter(|slot| !slot.finished && step.conflicts(&slot.step));
            let half = |there: bool| if there { Half::Due } else { Half::Done };
            self.slots.push_back(Slot {
                round,
                lane: self.schedule.lane(round),
                step,
                blockers: earlier.count() as u32,
                started: false,
                payload: None,
                send: half(step.send.is_some()),
                recv: half(step.recv.is_some()),
                finished: false,
            });
        }
        self.slots.front().map(|slot| slot.round)
    }

    /// All slots, oldest first.
    pub fn slots(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut()
    }

    /// Finishes every step with both halves done and unblocks later steps. Returns whether it finished a step.
    pub fn finish(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.slots.len() {
            let slot = &mut self.slots[at];
            if slot.finished || slot.send != Half::Done || slot.recv != Half::Done {
                continue;
            }
            slot.finished = true;
            any = true;
            let step = slot.step;
            for later in self.slots.range_mut(at + 1..).filter(|later| !later.started) {
                later.blockers -= u32::from(later.step.conflicts(&step));
            }
        }
        while self.slots.front().is_some_and(|slot| slot.finished) {
            self.slots.pop_front();
        }
        any
    }
}
