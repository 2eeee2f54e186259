//! A network of links and the transfers (flows) that share them.
//!
//! A *flow* is a transfer under way. A flow occupies every link of its path at the same time (cut-through) and moves at one rate,
//! which the links' sharing decides. Rates change only when a flow begins or ends, or when a link's bandwidth changes:
//!
//! ```text
//! begin, take_finished, cancel ...   all changes at one instant
//! settle(now)                        the shares are then solved, once
//! next_finish()                      when the next flow ends
//! ```
//!
//! A flow on a link without bandwidth makes no progress until the link gets bandwidth ([`FlowNetwork::set_bandwidth`]).
//!
//! All arithmetic is exact: a rate is whole bytes per second (floored, at least 1), the rest of a flow is counted in units of 1e-12
//! bytes, and a finish time is rounded up to a whole picosecond. In steady state nothing is allocated: flows and their entries in
//! the links' lists live in slabs and are linked by index.

mod filling;
mod heap;
mod max_min;
mod split;
#[cfg(test)]
mod tests;

use crate::{Bytes, BytesPerSec, Crossing, LinkId, Picos, Sharing};
use filling::Filling;
use heap::Heap;
use std::hint::black_box;

/// The number of a flow under way. The number is used again once the instant at which the flow ended has been settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

/// The use of a link since the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The bytes of all flows that have begun on the link, each times the flow's weight.
    pub bytes: u64,
    /// How long at least one flow was on the link.
    pub busy: Picos,
}

const NONE: u32 = u32::MAX;
/// The number of flows whose links are prefetched together (see `read_ahead`).
const BATCH: usize = 32;
/// The number of list entries that `read_ahead` follows for each flow.
const READ: usize = 4;
/// The finish time of a flow that makes no progress.
const NEVER: u64 = u64::MAX;
const UNITS_PER_BYTE: u64 = 1_000_000_000_000;

/// A link's state, the size of one cache line; a flow's state has that size, too.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct LinkState {
    capacity: u64,
    /// Sum of the weights of the flows on the link.
    load: u64,
    /// `capacity / load` as of the last settlement (used by `split`).
    share: u64,
    /// The first cell of the list of flows on the link.
    head: u32,
    /// Whether the flows on the link changed since the last settlement.
    changed: bool,
    /// The number of the last solution that visited the link (used by `max_min`).
    epoch: u64,
    bytes: u64,
    busy: u64,
    busy_since: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Flow {
    /// The remaining bytes x 1e12 at time `since`.
    remaining: u128,
    since: u64,
    rate: u64,
    finish: u64,
    /// The first of the flow's cells; `sibling` leads from each cell to the next.
    first: u32,
    /// The number of the last solution that visited the flow.
    epoch: u64,
    live: bool,
}

/// A flow on one link: an entry in the list of the link's flows (`before`, `after`) and in that of the flow's links (`sibling`).
#[derive(Clone, Copy, Debug)]
struct Cell {
    link: u32,
    weight: u32,
    flow: u32,
    sibling: u32,
    before: u32,
    after: u32,
}

/// All links, and the flows on them.
#[derive(Clone, Debug)]
pub struct FlowNetwork {
    sharing: Sharing,
    links: Vec<LinkState>,
    flows: Vec<Flow>,
    cells: Vec<Cell>,
    free_flows: Vec<u32>,
    /// The flows that ended since the last settlement.
    ended: Vec<u32>,
    free_cell: u32,
    finishes: Heap,
    changed: Vec<u32>,
    epoch: u64,
    affected: Vec<u32>,
    filling: Filling,
}

impl FlowNetwork {
    /// A network of links with these capacities, numbered from 0, without flows. A capacity of zero counts as 1 byte/s.
    pub fn new(capacities: impl IntoIterator<Item = BytesPerSec>, sharing: Sharing) -> FlowNetwork {
        let link = |capacity: BytesPerSec| {
            let capacity = capacity.0.max(1);
            LinkState { capacity, share: capacity, head: NONE, ..LinkState::default() }
        };
        FlowNetwork {
            sharing,
            links: capacities.into_iter().map(link).collect(),
            flows: Vec::new(),
            cells: Vec::new(),
            free_flows: Vec::new(),
            ended: Vec::new(),
            free_cell: NONE,
            finishes: Heap::default(),
            changed: Vec::new(),
            epoch: 0,
            affected: Vec::new(),
            filling: Filling::default(),
        }
    }

    /// Starts a flow of `bytes` over `path`. The flow gets its rate in [`FlowNetwork::settle`]; a flow without bytes or without
    /// links ends at once. The links must exist and differ, and weights must be 1 or more.
    pub fn begin(&mut self, now: Picos, path: &[Crossing], bytes: Bytes) -> FlowId {
        let flow = self.free_flows.pop().unwrap_or(self.flows.len() as u32);
        let mut first = NONE;
        let path = if bytes.0 == 0 { &[] } else { path };
        for crossing in path.iter().rev() {
            first = self.enter(now, flow, *crossing, bytes, first);
        }
        let remaining = if path.is_empty() { 0 } else { u128::from(bytes.0) * u128::from(UNITS_PER_BYTE) };
        let state =
            Flow { remaining, since: now.0, rate: 0, finish: now.0, first, epoch: self.epoch, live: true };
        match self.flows.get_mut(flow as usize) {
            Some(slot) => *slot = state,
            None => self.flows.push(state),
        }
        if path.is_empty() {
            self.finishes.set(flow, now.0);
        }
        FlowId(flow)
    }

    /// Solves the shares after all changes at time `now`. Does no work if nothing changed.
    pub fn settle(&mut self, now: Picos) {
        self.free_flows.append(&mut self.ended);
        if self.changed.is_empty() {
            return;
        }
        self.epoch = self.epoch.wrapping_add(1);
        match self.sharing {
            Sharing::Split => self.settle_split(now.0),
            Sharing::MaxMin => self.settle_max_min(now.0),
        }
    }

    /// When the next flow ends, once the current instant is settled; `None` if no flow makes progress.
    pub fn next_finish(&mut self) -> Option<Picos> {
        loop {
            let (finish, flow) = self.finishes.peek()?;
            if finish == NEVER {
                return None;
            }
            let now = self.flows[flow as usize].finish;
            // A flow that slowed down keeps its earlier key until it comes to the top of the heap.
            if now == finish {
                return Some(Picos(finish));
            }
            self.finishes.set(flow, now);
        }
    }

    /// Ends every flow that finishes by `at` and appends it to `finished`, in order of finish time, then number.
    pub fn take_finished(&mut self, at: Picos, finished: &mut Vec<FlowId>) {
        loop {
            let from = finished.len();
            while finished.len() < from + BATCH && self.next_finish().is_some_and(|next| next <= at) {
                finished.extend(self.finishes.pop().map(FlowId));
            }
            let batch = &finished[from..];
            if batch.is_empty() {
                return;
            }
            self.read_ahead(batch.iter().map(|flow| flow.0));
            batch.iter().for_each(|flow| self.end(at, flow.0));
        }
    }

    /// Ends a flow before it has finished. A flow that is not under way is ignored.
    pub fn cancel(&mut self, now: Picos, FlowId(flow): FlowId) {
        if self.flows.get(flow as usize).is_some_and(|f| f.live) {
            self.finishes.remove(flow);
            self.end(now, flow);
        }
    }

    /// Sets a link's bandwidth; rates follow in [`FlowNetwork::settle`]. With zero, the link's flows make no progress.
    pub fn set_bandwidth(&mut self, LinkId(link): LinkId, bandwidth: BytesPerSec) {
        let state = &mut self.links[link as usize];
        if state.capacity == bandwidth.0 {
            return;
        }
        state.capacity = bandwidth.0;
        if state.load == 0 {
            state.share = bandwidth.0;
        } else if !std::mem::replace(&mut state.changed, true) {
            self.changed.push(link);
        }
    }

    /// Whether any flow is under way, including flows that make no progress.
    pub fn has_flows(&self) -> bool {
        self.flows.iter().any(|flow| flow.live)
    }

    /// The number of links.
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// The use of a link from the start of the run to `now`.
    pub fn usage(&self, LinkId(link): LinkId, now: Picos) -> Usage {
        let link = &self.links[link as usize];
        let running = if link.load > 0 { now.0.saturating_sub(link.busy_since) } else { 0 };
        Usage { bytes: link.bytes, busy: Picos(link.busy + running) }
    }

    /// All flows under way, in order of their numbers.
    pub fn flows(&self) -> impl Iterator<Item = FlowId> {
        (0u32..).zip(&self.flows).filter(|(_, flow)| flow.live).map(|(number, _)| FlowId(number))
    }

    /// The rate of a flow as of the last settlement.
    pub fn rate(&self, FlowId(flow): FlowId) -> BytesPerSec {
        BytesPerSec(self.flows[flow as usize].rate)
    }

    /// The rest of a flow at `now`, in bytes x 1e12.
    pub fn remaining(&self, FlowId(flow): FlowId, now: Picos) -> u128 {
        let flow = &self.flows[flow as usize];
        flow.remaining.saturating_sub(u128::from(flow.rate) * u128::from(now.0 - flow.since))
    }

    /// Moves the times of all flows under way into the future by `by`, as if nothing happened in between.
    pub fn shift(&mut self, by: Picos) {
        for flow in self.flows.iter_mut().filter(|flow| flow.live) {
            flow.since += by.0;
            flow.finish = flow.finish.saturating_add(by.0);
        }
        self.finishes.shift(by.0);
        self.links.iter_mut().filter(|link| link.load > 0).for_each(|link| link.busy_since += by.0);
    }

    /// Adds `done` to a link's use, for work that was skipped and not simulated.
    pub fn credit(&mut self, LinkId(link): LinkId, done: Usage) {
        let link = &mut self.links[link as usize];
        link.bytes += done.bytes;
        link.busy += done.busy.0;
    }

    fn enter(&mut self, now: Picos, flow: u32, crossing: Crossing, bytes: Bytes, sibling: u32) -> u32 {
        let Crossing { link: LinkId(link), weight } = crossing;
        let state = &mut self.links[link as usize];
        let cell = Cell { link, weight, flow, sibling, before: NONE, after: state.head };
        let at = self.free_cell;
        let at = if at == NONE {
            self.cells.push(cell);
            self.cells.len() as u32 - 1
        } else {
            self.free_cell = std::mem::replace(&mut self.cells[at as usize], cell).sibling;
            at
        };
        if state.head != NONE {
            self.cells[state.head as usize].before = at;
        }
        if state.load == 0 {
            state.busy_since = now.0;
        }
        state.head = at;
        state.load += u64::from(weight);
        state.bytes = state.bytes.saturating_add(bytes.0.saturating_mul(weight.into()));
        if !std::mem::replace(&mut state.changed, true) {
            self.changed.push(link);
        }
        at
    }

    fn end(&mut self, now: Picos, flow: u32) {
        let state = &mut self.flows[flow as usize];
        state.live = false;
        let mut at = std::mem::replace(&mut state.first, NONE);
        while at != NONE {
            let Cell { link, weight, sibling, before, after, .. } = self.cells[at as usize];
            let state = &mut self.links[link as usize];
            match before {
                NONE => state.head = after,
                before => self.cells[before as usize].after = after,
            }
            if after != NONE {
                self.cells[after as usize].before = before;
            }
            state.load -= u64::from(weight);
            if state.load == 0 {
                state.busy += now.0.saturating_sub(state.busy_since);
            }
            if !std::mem::replace(&mut state.changed, true) {
                self.changed.push(link);
            }
            self.cells[at as usize].sibling = self.free_cell;
            self.free_cell = at;
            at = sibling;
        }
        self.ended.push(flow);
    }

    /// Sets the rate of a flow from `now` on.
    fn set_rate(&mut self, now: u64, flow: u32, rate: u64) {
        let state = &mut self.flows[flow as usize];
        let fresh = state.rate == 0;
        if state.rate == rate {
            return;
        }
        let moved = u128::from(state.rate) * u128::from(now - state.since);
        state.remaining = state.remaining.saturating_sub(moved);
        state.since = now;
        let sooner = fresh || rate > state.rate;
        state.rate = rate;
        state.finish = if rate == 0 { NEVER } else { now + time_left(state.remaining, rate) };
        // A later finish time enters the heap when the old one comes to the top (see `next_finish`), an earlier one at once.
        if sooner {
            self.finishes.set(flow, state.finish);
        }
    }

    /// Reads the links of several flows together, so that their cache misses overlap. If flows are read one after the other, each
    /// address depends on the load before, and the processor waits for every miss separately.
    fn read_ahead(&self, flows: impl ExactSizeIterator<Item = u32> + Clone) {
        if flows.len() > 1 {
            let first = |flow: u32| self.flows[flow as usize].first;
            black_box(flows.clone().fold(0, |sum, flow| sum ^ first(flow)));
            let links = flows.flat_map(|flow| FlowNetwork::of_flow(&self.cells, first(flow)).take(READ));
            black_box(links.fold(0, |sum, cell| sum ^ self.links[cell.link as usize].share));
        }
    }

    /// Every cell of a link's list, which starts at `head`.
    fn on_link(cells: &[Cell], head: u32) -> impl Iterator<Item = &Cell> {
        std::iter::successors(cells.get(head as usize), |cell| cells.get(cell.after as usize))
    }

    /// The cells of the flow whose first cell is `first`.
    fn of_flow(cells: &[Cell], first: u32) -> impl Iterator<Item = &Cell> {
        std::iter::successors(cells.get(first as usize), |cell| cells.get(cell.sibling as usize))
    }
}

/// The remaining time of a flow in whole picoseconds, rounded up, and capped so that it can be added to any time that engines
/// allow.
fn time_left(remaining: u128, rate: u64) -> u64 {
    let left = match u64::try_from(remaining) {
        Ok(remaining) => remaining.div_ceil(rate),
        Err(_) => u64::try_from(remaining.div_ceil(u128::from(rate))).unwrap_or(u64::MAX),
    };
    left.min(u64::MAX / 2)
}
