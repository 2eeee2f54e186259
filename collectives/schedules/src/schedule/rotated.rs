//! A schedule whose roles are rotated within each node, so that lanes of one schedule leave a node by different NICs.
//!
//! ```text
//! ring over 2 nodes of 4      rank:    0 1 2 3 | 4 5 6 7
//!   lane 0, rotated by 0      role:    0 1 2 3 | 4 5 6 7      leaves the nodes from ranks 3 and 7, enters at 0 and 4
//!   lane 1, rotated by 1      role:    1 2 3 0 | 5 6 7 4      leaves the nodes from ranks 2 and 6, enters at 3 and 7
//! ```
//!
//! NCCL's channels are laid out in this way: each channel of a node enters and leaves by a NIC of its own. Source: NCCL,
//! `src/graph/connect.cc` (`ncclTopoPreset`), which takes an order of a node's GPUs for each channel.

use super::symmetry::lcm;
use super::{Lanes, Permutation, Rank, Schedule, Step};
use std::sync::Arc;

/// The schedule `of`, in which the rank at place p of a node of `devices` ranks has the role of place p + `by`, modulo `devices`.
#[derive(Clone, Copy, Debug)]
pub struct Rotated<S> {
    of: S,
    devices: u32,
    by: u32,
}

impl<S: Schedule> Rotated<S> {
    /// Rotates the roles in each node of `devices` consecutive ranks.
    ///
    /// # Panics
    /// The ranks do not fill their nodes.
    pub fn new(of: S, devices: u32, by: u32) -> Rotated<S> {
        assert!(devices > 0 && of.ranks().is_multiple_of(devices), "nodes are full");
        Rotated { by: by % devices, of, devices }
    }

    /// The place of `rank` moved by `by` within its node.
    fn moved(&self, rank: Rank, by: u32) -> Rank {
        let (node, place) = (rank.0 / self.devices, rank.0 % self.devices);
        Rank(node * self.devices + (place + by) % self.devices)
    }

    fn role(&self, rank: Rank) -> Rank {
        self.moved(rank, self.by)
    }

    fn rank(&self, role: Rank) -> Rank {
        self.moved(role, self.devices - self.by)
    }
}

impl<S: Schedule> Schedule for Rotated<S> {
    fn ranks(&self) -> u32 {
        self.of.ranks()
    }
    fn chunks(&self) -> u32 {
        self.of.chunks()
    }
    fn rounds(&self) -> u64 {
        self.of.rounds()
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        self.of.step(self.role(rank), round).map(|peer| self.rank(peer), |span| span)
    }
    fn active(&self, rank: Rank) -> std::ops::Range<u64> {
        self.of.active(self.role(rank))
    }
    fn next(&self, rank: Rank, round: u64) -> Option<u64> {
        self.of.next(self.role(rank), round)
    }
    /// Renumberings that move whole nodes: only these are the same before and after a rotation within nodes.
    fn symmetry(&self) -> Vec<Permutation> {
        if self.by == 0 {
            return self.of.symmetry();
        }
        let whole = |by: Permutation| match by {
            Permutation::Rotate(ranks) => {
                let ranks = u32::try_from(lcm(u64::from(ranks), u64::from(self.devices))).ok()?;
                Some(Permutation::Rotate(ranks)).filter(|_| !ranks.is_multiple_of(self.ranks()))
            }
            Permutation::Xor(mask) => {
                let nodes = self.devices.is_power_of_two() && mask.is_multiple_of(self.devices);
                nodes.then_some(Permutation::Xor(mask))
            }
        };
        self.of.symmetry().into_iter().filter_map(whole).collect()
    }
    fn lanes(&self) -> u32 {
        self.of.lanes()
    }
    fn lane(&self, round: u64) -> u32 {
        self.of.lane(round)
    }
    fn segments(&self) -> u32 {
        self.of.segments()
    }
    fn stride(&self) -> u64 {
        self.of.stride()
    }
    fn owner(&self, chunk: u32) -> Rank {
        self.rank(self.of.owner(chunk))
    }
}

/// `lanes` lanes of one schedule on nodes of `devices` ranks and `nics` NICs. Lanes 0 to `nics` - 1 leave a node by different NICs: each
/// lane is rotated relative to the lane before by the number of ranks that share a NIC. The next `nics` lanes have the same rotations
/// plus one rank, and so on. If every rotation occurs equally often, and more than once, the lanes are replicated, so that a simulator
/// may step one set of rotations for all.
///
/// The rotation changes which rank is the root of a rooted schedule: give such a schedule lanes by [`Lanes::split`].
///
/// # Panics
/// There is no lane, or the ranks do not fill their nodes.
pub fn over_nics<S: Schedule + Clone + 'static>(
    of: S,
    lanes: u32,
    devices: u32,
    nics: u32,
) -> Arc<dyn Schedule> {
    let nics = nics.clamp(1, devices);
    let share = devices.div_ceil(nics);
    let by = |lane: u32| (lane % nics) * share + lane / nics;
    let distinct = lanes.min(nics * share);
    let rotated =
        |count: u32| Lanes::new((0..count).map(|lane| Rotated::new(of.clone(), devices, by(lane))).collect());
    match lanes.is_multiple_of(distinct) && lanes > distinct {
        true => Arc::new(Lanes::split(rotated(distinct), (lanes / distinct) as usize)),
        false => Arc::new(rotated(lanes)),
    }
}
