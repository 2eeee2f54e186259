//! A mixture of experts: small networks of which each token uses a few (N. Shazeer et al., ICLR 2017; D. Lepikhin et al., "GShard",
//! ICLR 2021; W. Fedus et al., "Switch Transformers", JMLR 23, 2022).
//!
//! ```text
//! x [T, C] -router-> [E, slots, C] -c_fc-> [E, slots, 4 C] -gelu- -c_proj-> [E, slots, C] -combine-> y [T, C]
//!    p = softmax of x w'                 each expert its own weights                          y = sum of gate * output
//!                  '- gates and slot numbers pass through as the activation's last numbers --------'
//! ```
//!
//! A token is routed to the experts with its k largest p. Its gates are these p divided by their sum, or p itself if k is 1. An expert
//! takes at most `capacity` tokens of a sample, the first ones by position: whether a token is dropped depends on the tokens of its
//! sample up to it, not on later tokens, the batch or the ranks. A dropped token adds 0 for that expert.
//!
//! Ranks of the expert axis have samples and experts of their own. The router sends each expert's slots to the expert's rank, and
//! `combine` sends the outputs back, so that a step has two all-to-alls forward and two backward per mixture.
//!
//! ```text
//! n samples on each of 2 ranks, 4 experts      rank 0 sends | e0 e1 | e2 e3 |     rank 1 sends | e0 e1 | e2 e3 |
//! rank 0 then has, expert by expert            | e0 of rank 0, e0 of rank 1 | e1 of rank 0, e1 of rank 1 |
//! ```

mod combine;
mod gelu;
mod linear;
mod router;
#[cfg(test)]
mod tests;

pub use combine::ExpertCombine;
pub use gelu::ExpertGelu;
pub use linear::ExpertLinear;
pub use router::ExpertRouter;

use super::Peers;
use allfold_kernels::nn::Float;

/// The sizes of a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// Tokens of a sample, T.
    pub positions: usize,
    /// Numbers of a token, C.
    pub width: usize,
    /// Experts, E.
    pub experts: usize,
    /// Experts that each token is routed to, k.
    pub chosen: usize,
    /// The most tokens of a sample that an expert takes.
    pub capacity: usize,
}

impl ExpertShape {
    /// The slots of a sample, over all experts.
    pub fn slots(&self) -> usize {
        self.experts * self.capacity
    }

    /// Pairs of a token and one of its experts, of a sample. An activation between the layers ends with a gate and a slot number for
    /// each pair.
    pub fn choices(&self) -> usize {
        self.positions * self.chosen
    }

    /// The numbers per sample of an activation before or after the experts: slots, gates and slot numbers.
    fn exchanged(&self) -> usize {
        self.slots() * self.width + 2 * self.choices()
    }

    /// The elements of slot `number` of sample `s` of `n`, where slots are in the order of experts; `None` for a dropped token.
    fn slot(&self, number: usize, s: usize, n: usize) -> Option<std::ops::Range<usize>> {
        let (expert, at) = (number / self.capacity, number % self.capacity);
        let start = ((expert * n + s) * self.capacity + at) * self.width;
        (number < self.slots()).then(|| start..start + self.width)
    }
}

/// Sends every expert's slots to the rank that has the expert; each rank has `own` experts. A rank receives slots in the order of
/// its experts, and for each expert in the order of the sending ranks.
fn to_experts<F: Float>(peers: &mut dyn Peers<F>, slots: &mut [F], own: usize) {
    let size = peers.size();
    if size == 1 {
        return;
    }
    let mut received = vec![F::ZERO; slots.len()];
    peers.all_to_all(slots, &mut received);
    let block = slots.len() / (size * own);
    for (at, part) in slots.chunks_exact_mut(block.max(1)).enumerate() {
        let (expert, rank) = (at / size, at % size);
        part.copy_from_slice(&received[(rank * own + expert) * block..][..block]);
    }
}

/// Sends every slot back to the rank from which [`to_experts`] received the slot.
fn from_experts<F: Float>(peers: &mut dyn Peers<F>, slots: &mut [F], own: usize) {
    let size = peers.size();
    if size == 1 {
        return;
    }
    let block = slots.len() / (size * own);
    let mut sent = vec![F::ZERO; slots.len()];
    for (at, part) in slots.chunks_exact(block.max(1)).enumerate() {
        let (expert, rank) = (at / size, at % size);
        sent[(rank * own + expert) * block..][..block].copy_from_slice(part);
    }
    peers.all_to_all(&sent, slots);
}
