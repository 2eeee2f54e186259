//! Scratch data of the max-min solver.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Scratch buffers that the max-min solver keeps from one solution to the next.
#[derive(Clone, Debug, Default)]
pub(super) struct Filling {
    /// The links of the affected components, with the bandwidth left for flows without a rate yet, and the weight of these flows.
    pub(super) links: Vec<Open>,
    /// The index of each link in `links`; valid only if the link's epoch is the current one.
    pub(super) place: Vec<u32>,
    /// The level of each link, which is the common rate of its flows at which the link is full, as of the time when the entry was
    /// pushed. A link's level never falls, so an entry can only be too low.
    pub(super) levels: BinaryHeap<Reverse<(u64, u32)>>,
    pub(super) full: Vec<u32>,
    pub(super) rates: Vec<(u32, u64)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) link: u32,
    pub(super) left: u64,
    pub(super) weight: u64,
    /// The least rate of a flow on the link: 1, or 0 for a link without bandwidth.
    pub(super) least: u64,
}

impl Open {
    pub(super) fn level(&self) -> u64 {
        (self.left / self.weight).max(self.least)
    }
}
