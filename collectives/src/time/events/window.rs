//! The windows of all actors: their steps under way, and which of them wait for which.
//!
//! ```text
//! steps of one actor   ... done | 41 done 43 44 done 46 .. | 105 ...     window of W from the oldest unfinished
//!                                 ^ base                     ^ head
//! ```
//!
//! A step that touches what an earlier unfinished one touches waits for it: it counts its *blockers*, and each of
//! them keeps a list of its *dependents*. Whether two steps can conflict at all is found by a scan over three
//! arrays of small numbers, which the compiler turns into vector instructions; only hits are looked at closely.

use crate::schedule::{Place, Span};

/// No slot, no channel, no entry of a list.
pub(super) const NONE: u32 = u32::MAX;

/// A span by numbers. Empty (`from == to == 0`) where a step has no such half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Area {
    place: u32,
    pub(super) segment: u32,
    pub(super) from: u32,
    pub(super) to: u32,
}

impl Area {
    pub(super) fn of(span: Span) -> Area {
        let place = match span.place {
            Place::Data => 0,
            Place::Scratch(shadow) => shadow + 1,
        };
        Area { place, segment: span.segment, from: span.at, to: span.at + span.len }
    }

    /// The span again.
    pub(super) fn span(&self) -> Span {
        let place = self.place.checked_sub(1).map_or(Place::Data, Place::Scratch);
        Span { place, at: self.from, len: self.to - self.from, segment: self.segment }
    }

    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    fn overlaps(&self, other: &Area) -> bool {
        self.from < other.to
            && other.from < self.to
            && self.segment == other.segment
            && self.place == other.place
    }
}

/// A step under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) round: u64,
    /// When it was posted, and when it was done as far as is known, on the clock without bytes.
    pub(super) posted_chain: u64,
    pub(super) done_chain: u64,
    pub(super) read: Area,
    pub(super) write: Area,
    /// The channels of its halves.
    pub(super) send: u32,
    pub(super) receive: u32,
    /// The steps behind it in those channels.
    pub(super) after_send: u32,
    pub(super) after_receive: u32,
    /// Entries of the list of steps that wait for it.
    dependents: u32,
    blockers: u32,
    /// Halves that are not done.
    pub(super) halves: u8,
    pub(super) reduces: bool,
    pub(super) posted: bool,
}

impl Slot {
    /// A step of a round, with no halves yet.
    pub(super) fn new(round: u64) -> Slot {
        let (send, receive, after_send, after_receive) = (NONE, NONE, NONE, NONE);
        Slot { round, send, receive, after_send, after_receive, dependents: NONE, ..Slot::default() }
    }

    fn conflicts(&self, earlier: &Slot) -> bool {
        self.write.overlaps(&earlier.read)
            || self.write.overlaps(&earlier.write)
            || self.read.overlaps(&earlier.write)
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: u32,
    next: u32,
}

/// Where an actor stands in its state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    /// Number of the oldest unfinished step, and of the next one to be issued, counted over steps that act.
    pub(super) base: u64,
    pub(super) head: u64,
    /// When its last step was done.
    pub(super) finish: u64,
    /// The same on the clock without bytes, over the steps before `base`.
    pub(super) chain: u64,
}

/// The windows of all actors. A step's slot is `actor * size + number % size`, `size` a power of two.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    window: u64,
    pub(super) size: u32,
    pub(super) states: Vec<State>,
    pub(super) slots: Vec<Slot>,
    /// For the scan: segment (-1: several), first and one past the last chunk touched. Nothing unfinished: (0, 0, 0).
    segments: Vec<i32>,
    lows: Vec<i32>,
    highs: Vec<i32>,
    entries: Vec<Entry>,
    free: u32,
}

impl Windows {
    /// For this many actors, `window` steps each of which never more than `steps` are needed.
    pub(super) fn new(actors: u32, window: u32, steps: u64) -> Option<Windows> {
        let most = u64::from(window).min(steps.max(1));
        let size = u32::try_from(most).ok()?.checked_next_power_of_two()?;
        let slots = usize::try_from(u64::from(actors) * u64::from(size)).ok()?;
        if slots >= NONE as usize {
            return None;
        }
        Some(Windows {
            window: most,
            size,
            states: vec![State::default(); actors as usize],
            slots: vec![Slot::default(); slots],
            segments: vec![0; slots],
            lows: vec![0; slots],
            highs: vec![0; slots],
            entries: Vec::new(),
            free: NONE,
        })
    }

    /// Whether an actor may issue another step.
    pub(super) fn has_room(&self, actor: u32) -> bool {
        let state = &self.states[actor as usize];
        state.head - state.base < self.window
    }

    /// The actor of a slot.
    pub(super) fn actor(&self, slot: u32) -> u32 {
        slot / self.size
    }

    /// The slot of an actor's step, by its number.
    pub(super) fn slot_of(&self, actor: u32, number: u64) -> u32 {
        actor * self.size + (number as u32 & (self.size - 1))
    }

    /// The slot that an actor's next step will have.
    pub(super) fn upcoming(&self, actor: u32) -> u32 {
        self.slot_of(actor, self.states[actor as usize].head)
    }

    /// The slot of an actor's oldest unfinished step.
    pub(super) fn oldest(&self, actor: u32) -> u32 {
        self.slot_of(actor, self.states[actor as usize].base)
    }

    /// Whether an actor has nothing under way.
    pub(super) fn is_empty(&self, actor: u32) -> bool {
        let state = &self.states[actor as usize];
        state.base == state.head
    }

    /// Issues a step: the next of its actor. Returns its slot, and whether nothing holds it back.
    pub(super) fn issue(&mut self, actor: u32, mut step: Slot) -> (u32, bool) {
        let state = &mut self.states[actor as usize];
        let at = actor * self.size + (state.head as u32 & (self.size - 1));
        state.head += 1;
        step.posted_chain = state.chain;
        step.dependents = NONE;
        step.blockers = 0;
        let (segment, low, high) = touched(&step);
        let first = (actor * self.size) as usize;
        let all = first..first + self.size as usize;
        for start in all.clone().step_by(16) {
            let part = start..all.end.min(start + 16);
            let mut hit = false;
            for i in part.clone() {
                let same = (self.segments[i] == segment) | (self.segments[i] < 0) | (segment < 0);
                hit |= same & (self.lows[i] < high) & (low < self.highs[i]);
            }
            if hit {
                for i in part {
                    if self.highs[i] > 0 && step.conflicts(&self.slots[i]) {
                        step.blockers += 1;
                        let next = std::mem::replace(&mut self.slots[i].dependents, NONE);
                        self.slots[i].dependents = self.entry(at, next);
                    }
                }
            }
        }
        let i = at as usize;
        (self.segments[i], self.lows[i], self.highs[i]) = (segment, low, high);
        self.slots[i] = step;
        (at, step.blockers == 0)
    }

    /// Takes a step as done at `now`: those that waited for nothing else are appended to `ready`.
    pub(super) fn finish(&mut self, now: u64, slot: u32, ready: &mut Vec<u32>) {
        let i = slot as usize;
        self.highs[i] = 0;
        let done = self.slots[i];
        let mut entry = done.dependents;
        while entry != NONE {
            let Entry { slot: waiting, next } = self.entries[entry as usize];
            let step = &mut self.slots[waiting as usize];
            step.posted_chain = step.posted_chain.max(done.done_chain);
            step.blockers -= 1;
            if step.blockers == 0 {
                ready.push(waiting);
            }
            self.entries[entry as usize].next = self.free;
            self.free = entry;
            entry = next;
        }
        let actor = slot / self.size;
        let state = &mut self.states[actor as usize];
        state.finish = now;
        while state.base < state.head {
            let oldest = (actor * self.size + (state.base as u32 & (self.size - 1))) as usize;
            if self.highs[oldest] > 0 {
                break;
            }
            state.chain = state.chain.max(self.slots[oldest].done_chain);
            state.base += 1;
        }
    }

    fn entry(&mut self, slot: u32, next: u32) -> u32 {
        let entry = Entry { slot, next };
        match self.free {
            NONE => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
            at => {
                self.free = std::mem::replace(&mut self.entries[at as usize], entry).next;
                at
            }
        }
    }
}

/// The segment of a step's areas (-1 where they differ), and the chunks from the first to the last it touches.
fn touched(step: &Slot) -> (i32, i32, i32) {
    let (read, write) = (&step.read, &step.write);
    let (one, other) = if read.is_empty() { (write, write) } else { (read, read) };
    let other = if write.is_empty() { other } else { write };
    let segment = if one.segment == other.segment { one.segment as i32 } else { -1 };
    (segment, one.from.min(other.from) as i32, one.to.max(other.to) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(read: Option<Span>, write: Option<Span>) -> Slot {
        let area = |span: Option<Span>| span.map_or(Area::default(), Area::of);
        Slot { read: area(read), write: area(write), halves: 1, ..Slot::default() }
    }

    #[test]
    fn a_step_waits_for_all_that_it_conflicts_with_and_two_reads_do_not() {
        let mut windows = Windows::new(1, 20, 100).unwrap();
        let mut issue = |step| windows.issue(0, step);
        let (write, free) = issue(step(None, Some(Span::data(0, 2))));
        assert!(free);
        let (read, free) = issue(step(Some(Span::data(1, 2)), None));
        assert!(!free, "reads what is being written");
        assert!(issue(step(None, Some(Span::scratch(0, 1, 1)))).1, "another place");
        assert!(issue(step(Some(Span::data(4, 1)), None)).1);
        assert!(issue(step(Some(Span::data(4, 1)), None)).1, "two reads");
        let (last, free) = issue(step(None, Some(Span::data(1, 1))));
        assert!(!free, "waits for the write and for the read");
        let mut ready = Vec::new();
        windows.finish(5, write, &mut ready);
        assert_eq!(ready, [read]);
        windows.finish(6, read, &mut ready);
        assert_eq!(ready, [read, last]);
        assert_eq!(windows.states[0].base, 2);
    }

    #[test]
    fn pieces_of_one_chunk_do_not_conflict_and_a_step_over_two_pieces_does_with_both() {
        let piece = |segment| Some(Span { segment, ..Span::data(3, 1) });
        let mut windows = Windows::new(1, 4, 100).unwrap();
        assert!(windows.issue(0, step(None, piece(1))).1);
        assert!(windows.issue(0, step(None, piece(2))).1);
        assert!(!windows.issue(0, step(piece(2), piece(1))).1);
        assert!(!windows.has_room(0) || windows.issue(0, step(piece(9), None)).1);
    }
}
