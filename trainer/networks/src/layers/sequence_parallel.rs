//! Sequence parallelism: outside of tensor-parallel blocks each rank of the tensor axis has some positions of every sample
//! (V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022).
//!
//! ```text
//!   own positions         all positions, some outputs or heads              own positions
//! -- layer norm --[gather]-- column-parallel -- ... -- row-parallel --[sum, scatter]-- dropout -- add --
//!
//! rank i of T has positions i P/T to (i + 1) P/T of the P positions of each sample
//! backward, each gather becomes a sum that is scattered, and each scattered sum a gather
//! ```
//!
//! A gather and a scattered sum together send as many bytes as one sum over all ranks, which tensor parallelism alone uses instead. The
//! column-parallel layer keeps only this rank's positions of its input, and gathers the input once more for its weight gradient.
//! Parameters of the layers between blocks are whole on every rank: each rank computes the part of their gradients that comes from its
//! positions.

use super::{PassKind, PeerCall, Peers};
use allfold_kernels::nn::Float;
use std::borrow::Cow;
use std::ops::Range;

/// How many ranks of the tensor axis share the positions of the activations outside of tensor-parallel blocks; 1 if each rank has all
/// of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PositionSharing(pub usize);

impl PositionSharing {
    /// The number of positions that a rank has of these.
    pub fn own(self, positions: usize) -> usize {
        positions / self.0
    }

    /// All positions of `n` samples, from `own`, those of this rank. Every rank of the axis must call it.
    pub fn gather<'a, F: Float>(self, n: usize, own: &'a [F], peers: &mut dyn Peers<F>) -> Cow<'a, [F]> {
        if self.0 == 1 {
            return Cow::Borrowed(own);
        }
        let mut all = vec![F::ZERO; own.len() * self.0];
        self.gather_into(n, own, &mut all, peers);
        Cow::Owned(all)
    }

    /// [`PositionSharing::gather`] into a buffer that is as long as all ranks' positions together.
    pub fn gather_into<F: Float>(self, n: usize, own: &[F], all: &mut [F], peers: &mut dyn Peers<F>) {
        if n <= 1 {
            return peers.gather(own, all);
        }
        let mut blocks = vec![F::ZERO; all.len()];
        peers.gather(own, &mut blocks);
        self.each_part(n, own.len(), |in_block, in_sample| all[in_sample].copy_from_slice(&blocks[in_block]));
    }

    /// Writes the sum over the ranks of what `compute` writes: all positions, or if ranks share positions, this rank's own. `compute` gets
    /// a buffer for all positions of `n` samples. Every rank of the axis must call it.
    pub fn sum<F: Float>(
        self,
        n: usize,
        own: &mut [F],
        peers: &mut dyn Peers<F>,
        compute: impl FnOnce(&mut [F]),
    ) {
        if self.0 == 1 {
            compute(own);
            return peers.sum(own);
        }
        let mut all = vec![F::ZERO; own.len() * self.0];
        compute(&mut all);
        if n > 1 {
            let mut blocks = vec![F::ZERO; all.len()];
            self.each_part(n, own.len(), |in_block, in_sample| {
                blocks[in_block].copy_from_slice(&all[in_sample]);
            });
            all = blocks;
        }
        peers.sum_scattered(&all, own);
    }

    /// The calls of [`PositionSharing::gather`] of `own` elements.
    pub fn gather_calls(self, own: usize) -> Vec<PeerCall> {
        if self.0 == 1 { Vec::new() } else { vec![PeerCall::Gather(own)] }
    }

    /// The calls of [`PositionSharing::sum`] to `own` elements.
    pub fn sum_calls(self, own: usize) -> Vec<PeerCall> {
        vec![if self.0 == 1 { PeerCall::Sum(own) } else { PeerCall::SumScattered(own * self.0) }]
    }

    /// The calls of a layer that sums its output, `own` elements on this rank, and nothing else.
    pub fn calls_of_sum(self, pass: PassKind, own: usize) -> Vec<PeerCall> {
        match pass {
            PassKind::Forward => self.sum_calls(own),
            PassKind::GatherGradient => self.gather_calls(own),
            PassKind::WeightGrad | PassKind::InputGrad => Vec::new(),
        }
    }

    /// Calls `copy` for each rank and each of `n` samples with the places of the rank's positions of the sample: in the blocks of the
    /// ranks, each `block` numbers long, and in the samples, one after another.
    fn each_part(self, n: usize, block: usize, mut copy: impl FnMut(Range<usize>, Range<usize>)) {
        let part = block / n;
        for (rank, sample) in (0..self.0).flat_map(|rank| (0..n).map(move |sample| (rank, sample))) {
            let (in_blocks, in_samples) = (rank * n + sample, sample * self.0 + rank);
            copy(in_blocks * part..(in_blocks + 1) * part, in_samples * part..(in_samples + 1) * part);
        }
    }
}
