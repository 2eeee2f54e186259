//! An indexed four-ary min-heap of flows by finish time, in which a flow's key can be changed in place.

const GONE: u32 = u32::MAX;

/// Finish times of flows, the earliest first; ties are ordered by flow number.
#[derive(Clone, Debug, Default)]
pub(super) struct Heap {
    entries: Vec<(u64, u32)>,
    /// The index of each flow in `entries`.
    places: Vec<u32>,
}

impl Heap {
    /// The earliest finish time and its flow.
    pub(super) fn peek(&self) -> Option<(u64, u32)> {
        self.entries.first().copied()
    }

    /// Adds a flow, or changes its finish time.
    pub(super) fn set(&mut self, flow: u32, finish: u64) {
        if self.places.len() <= flow as usize {
            self.places.resize(flow as usize + 1, GONE);
        }
        let place = self.places[flow as usize] as usize;
        if place == GONE as usize {
            self.entries.push((finish, flow));
            self.up(self.entries.len() - 1, (finish, flow));
        } else if (finish, flow) < self.entries[place] {
            self.up(place, (finish, flow));
        } else {
            self.down(place, (finish, flow));
        }
    }

    /// Removes the flow with the earliest finish time and returns it.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let (_, flow) = self.peek()?;
        self.remove(flow);
        Some(flow)
    }

    /// Removes `flow`, if it is in the heap.
    pub(super) fn remove(&mut self, flow: u32) {
        let Some(&place) = self.places.get(flow as usize).filter(|&&place| place != GONE) else { return };
        self.places[flow as usize] = GONE;
        let Some(last) = self.entries.pop() else { return };
        if last.1 == flow {
            return;
        }
        let place = place as usize;
        if place > 0 && last < self.entries[(place - 1) / 4] {
            self.up(place, last);
        } else {
            self.down(place, last);
        }
    }

    /// Adds `by` to every finish time, which keeps their order.
    pub(super) fn shift(&mut self, by: u64) {
        self.entries.iter_mut().for_each(|entry| entry.0 += by);
    }

    fn up(&mut self, mut at: usize, entry: (u64, u32)) {
        while at > 0 {
            let parent = (at - 1) / 4;
            if self.entries[parent] <= entry {
                break;
            }
            self.put(at, self.entries[parent]);
            at = parent;
        }
        self.put(at, entry);
    }

    fn down(&mut self, mut at: usize, entry: (u64, u32)) {
        loop {
            let first = 4 * at + 1;
            let children = first..(first + 4).min(self.entries.len());
            let Some(least) = children.min_by_key(|&child| self.entries[child]) else { break };
            if entry <= self.entries[least] {
                break;
            }
            self.put(at, self.entries[least]);
            at = least;
        }
        self.put(at, entry);
    }

    fn put(&mut self, at: usize, entry: (u64, u32)) {
        self.entries[at] = entry;
        self.places[entry.1 as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn gives_what_a_sorted_map_gives(moves in prop::collection::vec((0u32..40, prop::option::of(0u64..100)), 1..300)) {
            let (mut heap, mut map) = (Heap::default(), BTreeMap::new());
            for (flow, finish) in moves {
                match finish {
                    Some(finish) => { heap.set(flow, finish); map.insert(flow, finish); }
                    None => { heap.remove(flow); map.remove(&flow); }
                }
                prop_assert_eq!(heap.peek(), map.iter().map(|(&flow, &finish)| (finish, flow)).min());
            }
        }
    }
}
