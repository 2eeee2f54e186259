//! What a max-min solution works on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Scratch space, kept from one solution to the next.
#[derive(Clone, Debug, Default)]
pub(super) struct Filling {
    /// Links of the components, with what is left of each and the weight that still shares it.
    pub(super) links: Vec<Open>,
    /// Where a link stands in `links`; valid where its epoch is the present one.
    pub(super) place: Vec<u32>,
    /// Levels at which links would fill, as they were when pushed: a level only ever rises.
    pub(super) levels: BinaryHeap<Reverse<(u64, u32)>>,
    pub(super) full: Vec<u32>,
    pub(super) rates: Vec<(u32, u64)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) link: u32,
    pub(super) left: u64,
    pub(super) weight: u64,
    /// 1, or 0 where the link has no bandwidth at all.
    pub(super) least: u64,
}

impl Open {
    pub(super) fn level(&self) -> u64 {
        (self.left / self.weight).max(self.least)
    }
}
