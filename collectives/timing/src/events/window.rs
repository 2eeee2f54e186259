//! The windows of all representatives: their steps in flight, and the dependencies between these steps.
//!
//! ```text
//! steps of one representative   ... done | 41 done 43 44 done 46 .. | 105 ...     window of W from the oldest unfinished
//!                                 ^ base                     ^ head
//! ```
//!
//! A step that conflicts with an earlier unfinished step waits for that step: it counts its *blockers*, and a finished step
//! searches for the later steps that it blocked. Only steps of one piece conflict: each window has a hash table of its unfinished
//! steps by their pieces, lists of slots.
//!
//! The windows of many ranks do not fit a cache, so the data of a step in flight fits one cache line.

use allfold_schedules::schedule::{Access, Region, Span};
use std::ops::{Index, IndexMut};

/// The value that means "no slot", "no channel" or "no list entry".
pub(super) const NONE: u32 = u32::MAX;

/// The value that follows the last step of a list: a channel's queue, or the steps of some pieces.
const LAST: u16 = u16::MAX;
/// The steps of a window for each of its lists, unless the window is smaller.
const LISTED: u32 = 8;
/// The largest window, in steps.
const MOST: u32 = 1 << 15;

/// One half of a step: the chunks it accesses, its channel, and the next step in the channel's queue. If the step has no such half,
/// it accesses nothing (`from == to == 0`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Half {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) channel: u32,
    /// The region: 0 for the data, otherwise the number of the scratch copy plus one.
    place: u16,
    /// The next step in the channel's queue, by its place in the window.
    behind: u16,
}

impl Half {
    const NONE: Half = Half { from: 0, to: 0, channel: NONE, place: 0, behind: LAST };

    /// The half of a step that uses this span; `None` if its scratch number is too large.
    pub(super) fn of(span: Span) -> Option<Half> {
        let place = match span.region {
            Region::Data => 0,
            Region::Scratch(copy) => u16::try_from(copy).ok()?.checked_add(1)?,
        };
        Some(Half { from: span.first_chunk, to: span.first_chunk + span.chunks, place, ..Half::NONE })
    }

    /// The span that the half accesses, in piece `segment`.
    pub(super) fn span(&self, segment: u32) -> Span {
        let place = self.place.checked_sub(1).map_or(Region::Data, |copy| Region::Scratch(copy.into()));
        Span { region: place, first_chunk: self.from, chunks: self.to - self.from, segment }
    }

    fn overlaps(&self, other: &Half) -> bool {
        self.from < other.to && other.from < self.to && self.place == other.place
    }
}

/// The state of a step in flight.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    /// When the step would be posted, and when its halves so far would be done, if messages had no bytes.
    pub(super) posted_chain: u64,
    pub(super) done_chain: u64,
    /// The round, equal for both halves of a message.
    pub(super) round: u64,
    /// The piece that the step belongs to.
    pub(super) segment: u32,
    pub(super) send: Half,
    pub(super) receive: Half,
    /// The number of earlier unfinished steps that conflict with the step.
    blockers: u16,
    /// The number of halves that are not done.
    pub(super) open: u8,
    pub(super) reduces: bool,
}

impl Slot {
    /// A step without halves.
    pub(super) fn new(round: u64, segment: u32) -> Slot {
        Slot {
            posted_chain: 0,
            done_chain: 0,
            round,
            segment,
            send: Half::NONE,
            receive: Half::NONE,
            blockers: 0,
            open: 0,
            reduces: false,
        }
    }

    fn conflicts(&self, earlier: &Slot) -> bool {
        let access = |slot: &Slot| Access { reads: Some(slot.send), writes: Some(slot.receive) };
        self.segment == earlier.segment
            && access(self).conflicts(&access(earlier), |one, other| one.overlaps(&other))
    }
}

/// The slots of all windows. Memory is allocated for slots that a step has had: most representatives have fewer steps than a window.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    windows: Vec<Vec<Slot>>,
    /// A window has `2^shift` slots.
    shift: u32,
}

impl Slots {
    /// The step that is or was in `slot`; `None` if none was.
    pub(super) fn get(&self, slot: u32) -> Option<&Slot> {
        self.windows.get((slot >> self.shift) as usize)?.get(self.place(slot))
    }

    /// The place of `slot` in its window.
    fn place(&self, slot: u32) -> usize {
        (slot & ((1 << self.shift) - 1)) as usize
    }

    /// Puts a step into `slot`. Slots of a window are first used in their order.
    fn put(&mut self, slot: u32, step: Slot) {
        let place = self.place(slot);
        let window = &mut self.windows[(slot >> self.shift) as usize];
        match window.get_mut(place) {
            Some(used) => *used = step,
            None => window.push(step),
        }
    }
}

impl Index<u32> for Slots {
    type Output = Slot;

    fn index(&self, slot: u32) -> &Slot {
        &self.windows[(slot >> self.shift) as usize][self.place(slot)]
    }
}

impl IndexMut<u32> for Slots {
    fn index_mut(&mut self, slot: u32) -> &mut Slot {
        let place = self.place(slot);
        &mut self.windows[(slot >> self.shift) as usize][place]
    }
}

/// A representative's position in its program.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    /// The numbers of the oldest unfinished step and of the next step to be issued, counted over steps that act.
    pub(super) base: u64,
    pub(super) head: u64,
    /// When the latest step of the representative was done; at first, when the representative had launched.
    pub(super) finish: u64,
    /// When the steps before `base` would all be done if messages had no bytes.
    pub(super) chain: u64,
}

/// The windows of all representatives. A step's slot is `representative * size + number % size`, `size` a power of two.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    window: u64,
    pub(super) size: u32,
    pub(super) states: Vec<State>,
    pub(super) slots: Slots,
    /// A bit for each slot that holds a posted step, so that most look-ups do not access the slots.
    posted: Vec<u64>,
    /// A bit for each slot that holds an unfinished step.
    unfinished: Vec<u64>,
    /// The first unfinished step of each list, by its place in the window; a representative has `lists` of them.
    first: Vec<u16>,
    /// The next unfinished step of the same list.
    next: Vec<u16>,
    /// The number of lists of a window, a power of two. A step is in list `segment % lists`.
    lists: u32,
}

impl Windows {
    /// Windows of `window` steps for each representative. At most `steps` steps of a window are ever used. `None` if that is too
    /// large.
    pub(super) fn new(representatives: u32, window: u32, steps: u64) -> Option<Windows> {
        let most = u64::from(window).min(steps.max(1));
        let size = u32::try_from(most).ok().filter(|most| *most <= MOST)?.next_power_of_two();
        let lists = (size / LISTED).max(1);
        let slots = usize::try_from(u64::from(representatives) * u64::from(size)).ok()?;
        if slots >= NONE as usize {
            return None;
        }
        Some(Windows {
            window: most,
            size,
            states: vec![State::default(); representatives as usize],
            slots: Slots {
                windows: vec![Vec::new(); representatives as usize],
                shift: size.trailing_zeros(),
            },
            posted: vec![0; slots.div_ceil(64)],
            unfinished: vec![0; slots.div_ceil(64)],
            first: vec![LAST; representatives as usize * lists as usize],
            next: vec![LAST; slots],
            lists,
        })
    }

    /// Whether a representative may issue another step.
    pub(super) fn has_space(&self, representative: u32) -> bool {
        let state = &self.states[representative as usize];
        state.head - state.base < self.window
    }

    /// The representative of a slot.
    pub(super) fn representative(&self, slot: u32) -> u32 {
        slot >> self.size.trailing_zeros()
    }

    /// The slot of a representative's step `number`.
    pub(super) fn slot_of(&self, representative: u32, number: u64) -> u32 {
        representative * self.size + (number as u32 & (self.size - 1))
    }

    /// The slot at `place` in the window of `slot`.
    fn neighbour(&self, slot: u32, place: u16) -> u32 {
        (slot & !(self.size - 1)) + u32::from(place)
    }

    /// The slot that a representative's next step will have.
    pub(super) fn upcoming(&self, representative: u32) -> u32 {
        self.slot_of(representative, self.states[representative as usize].head)
    }

    /// The slot of a representative's oldest unfinished step.
    pub(super) fn oldest(&self, representative: u32) -> u32 {
        self.slot_of(representative, self.states[representative as usize].base)
    }

    /// The round of the unfinished step in `slot`.
    pub(super) fn round(&self, slot: u32) -> u64 {
        self.slots[slot].round
    }

    /// Whether `slot` holds a posted step.
    pub(super) fn is_posted(&self, slot: u32) -> bool {
        self.posted.get(slot as usize / 64).is_some_and(|bits| bits >> (slot % 64) & 1 > 0)
    }

    /// Marks a step as posted, so that its halves may start.
    pub(super) fn post(&mut self, slot: u32) {
        self.posted[slot as usize / 64] |= 1 << (slot % 64);
    }

    /// Appends a step to a channel's queue of sends.
    pub(super) fn queue_send(&mut self, queue: &mut (u32, u32), slot: u32) {
        if let Some(last) = enqueue(queue, slot) {
            self.slots[last].send.behind = self.slots.place(slot) as u16;
        }
    }

    /// Appends a step to a channel's queue of receives.
    pub(super) fn queue_receive(&mut self, queue: &mut (u32, u32), slot: u32) {
        if let Some(last) = enqueue(queue, slot) {
            self.slots[last].receive.behind = self.slots.place(slot) as u16;
        }
    }

    /// The slot of the step that follows `half`'s step in the queue of its channel; `NONE` if there is none.
    pub(super) fn behind(&self, slot: u32, half: &Half) -> u32 {
        if half.behind == LAST { NONE } else { self.neighbour(slot, half.behind) }
    }

    /// Whether a representative has no step in flight.
    pub(super) fn is_empty(&self, representative: u32) -> bool {
        let state = &self.states[representative as usize];
        state.base == state.head
    }

    /// Issues the next step of a representative. Returns its slot, and whether it waits for no other step.
    pub(super) fn issue(&mut self, representative: u32, mut step: Slot) -> (u32, bool) {
        let at = self.upcoming(representative);
        let state = &mut self.states[representative as usize];
        state.head += 1;
        step.posted_chain = state.chain;
        step.blockers = 0;
        self.each_listed(at, step.segment, |_, earlier| step.blockers += u16::from(step.conflicts(earlier)));
        let i = at as usize;
        self.posted[i / 64] &= !(1 << (at % 64));
        self.unfinished[i / 64] |= 1 << (at % 64);
        self.slots.put(at, step);
        self.enlist(at);
        (at, step.blockers == 0)
    }

    /// Ends a step at time `now`. Steps that waited only for this step are appended to `ready`, in the order of their slots.
    pub(super) fn finish(&mut self, now: u64, slot: u32, ready: &mut Vec<u32>) {
        let (done, representative, mask) = (self.slots[slot], self.representative(slot), self.size - 1);
        self.unlist(slot);
        self.unfinished[slot as usize / 64] &= !(1 << (slot % 64));
        let base = self.states[representative as usize].base as u32;
        let number = |slot: u32| slot.wrapping_sub(base) & mask;
        let before = ready.len();
        self.each_listed(slot, done.segment, |other, step| {
            if number(other) > number(slot) && step.conflicts(&done) {
                step.posted_chain = step.posted_chain.max(done.done_chain);
                step.blockers -= 1;
                if step.blockers == 0 {
                    ready.push(other);
                }
            }
        });
        ready[before..].sort_unstable();
        let mut state = self.states[representative as usize];
        state.finish = now;
        while state.base < state.head {
            let oldest = self.slot_of(representative, state.base);
            if !self.is_done(oldest) {
                break;
            }
            state.chain = state.chain.max(self.slots[oldest].done_chain);
            state.base += 1;
        }
        self.states[representative as usize] = state;
    }

    /// Whether a step within the window is done.
    pub(super) fn is_done(&self, slot: u32) -> bool {
        self.unfinished[slot as usize / 64] >> (slot % 64) & 1 == 0
    }

    /// Advances all steps by whole pieces.
    pub(super) fn jump(&mut self, pieces: u32, rounds: u64, chain: u64) {
        self.first.fill(LAST);
        for representative in 0..self.states.len() as u32 {
            for place in 0..self.slots.windows[representative as usize].len() as u32 {
                let slot = representative * self.size + place;
                let under_way = !self.is_done(slot);
                let step = &mut self.slots[slot];
                step.posted_chain += chain;
                step.done_chain += if step.done_chain > 0 { chain } else { 0 };
                if under_way {
                    step.segment += pieces;
                    step.round += rounds;
                    self.enlist(slot);
                }
            }
        }
        self.states.iter_mut().for_each(|state| state.chain += chain);
    }

    /// The latest unfinished step of the same window that may conflict with the step in `slot`.
    pub(super) fn related(&self, slot: u32) -> Option<&Slot> {
        let latest = self.first[self.list(slot, self.slots[slot].segment)];
        (latest < LAST).then(|| &self.slots[self.neighbour(slot, latest)])
    }

    /// Calls `each` with the unfinished steps, and their slots, of the window of `slot` that are in the list of piece `segment`.
    fn each_listed(&mut self, slot: u32, segment: u32, mut each: impl FnMut(u32, &mut Slot)) {
        let mut place = self.first[self.list(slot, segment)];
        while place != LAST {
            let other = self.neighbour(slot, place);
            each(other, &mut self.slots[other]);
            place = self.next[other as usize];
        }
    }

    /// The list of piece `segment` in the window of `slot`.
    fn list(&self, slot: u32, segment: u32) -> usize {
        (self.representative(slot) * self.lists + (segment & (self.lists - 1))) as usize
    }

    /// Adds the step in `slot` to the list of its piece.
    fn enlist(&mut self, slot: u32) {
        let list = self.list(slot, self.slots[slot].segment);
        let place = self.slots.place(slot) as u16;
        self.next[slot as usize] = std::mem::replace(&mut self.first[list], place);
    }

    /// Takes the step in `slot` from the list of its piece.
    fn unlist(&mut self, slot: u32) {
        let place = self.slots.place(slot) as u16;
        let list = self.list(slot, self.slots[slot].segment);
        let (mut before, mut at) = (None, self.first[list]);
        while at != place {
            let passed = self.neighbour(slot, at) as usize;
            (before, at) = (Some(passed), self.next[passed]);
        }
        let after = self.next[slot as usize];
        match before {
            None => self.first[list] = after,
            Some(before) => self.next[before] = after,
        }
    }
}

/// Appends a step to a channel's queue and returns the step before it, if any.
fn enqueue((first, last): &mut (u32, u32), slot: u32) -> Option<u32> {
    let before = std::mem::replace(last, slot);
    if *first == NONE {
        *first = slot;
        return None;
    }
    Some(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(read: Option<Span>, write: Option<Span>) -> Slot {
        let half = |span: Option<Span>| span.and_then(Half::of).unwrap_or(Half::NONE);
        let segment = read.or(write).map_or(0, |span| span.segment);
        Slot { send: half(read), receive: half(write), open: 1, ..Slot::new(0, segment) }
    }

    #[test]
    fn a_step_fits_a_line_of_the_cache() {
        assert_eq!(size_of::<Slot>(), 64);
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
    fn pieces_of_one_chunk_do_not_conflict() {
        let piece = |segment| Some(Span { segment, ..Span::data(3, 1) });
        let mut windows = Windows::new(1, 4, 100).unwrap();
        assert!(windows.issue(0, step(None, piece(1))).1);
        assert!(windows.issue(0, step(None, piece(2))).1);
        assert!(windows.issue(0, step(None, piece(0x1_0000))).1, "one list, two pieces");
        assert!(!windows.issue(0, step(piece(2), None)).1);
        assert!(!windows.has_space(0));
    }

    #[test]
    fn a_window_too_large_is_refused() {
        assert!(Windows::new(1, MOST + 1, u64::MAX).is_none());
        assert!(Windows::new(1 << 20, 1 << 12, u64::MAX).is_none());
    }
}
