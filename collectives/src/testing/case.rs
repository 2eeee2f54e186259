//! Cases to run an algorithm on, and, with the feature `proptest`, how they are drawn.

use crate::{DType, Rank, ReduceOp};
#[cfg(feature = "proptest")]
use proptest::prelude::*;

/// One run of a collective, with all its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Number of ranks.
    pub ranks: u32,
    /// The root, if the collective has one.
    pub root: Rank,
    /// Number of elements of a buffer, or of one rank's block.
    pub count: usize,
    /// The element type.
    pub dtype: DType,
    /// The reduction operator.
    pub op: ReduceOp,
    /// Chunks are cut into segments of at most this many bytes.
    pub segment: Option<u64>,
    /// How many steps a rank may have in flight.
    pub window: u32,
    /// How many messages a channel holds before the sender must wait.
    pub buffered: usize,
}

/// Cases of up to `most` ranks, few of them large: any root, type and operator; counts of zero, fewer than ranks, and
/// such that ranks do not divide; segments and windows of all sizes, with and without buffering.
#[cfg(feature = "proptest")]
pub fn cases(most: u32) -> impl Strategy<Value = Case> {
    let few = most.min(9);
    let ranks = prop_oneof![4 => 1..=few, 1 => 1..=most];
    let count = prop_oneof![1 => Just(0usize), 2 => 1..8usize, 3 => 1..200usize];
    let kind = (prop::sample::select(&DType::ALL[..]), prop::sample::select(&ReduceOp::ALL[..]));
    let form = (prop::option::of(prop_oneof![1..64u64, 64..2048u64]), 1..=64u32, 0..4usize);
    let drawn = (ranks, any::<u32>(), count, kind, form);
    drawn.prop_map(|(ranks, root, count, (dtype, op), (segment, window, buffered))| Case {
        ranks,
        root: Rank(root % ranks),
        count,
        dtype,
        op,
        segment,
        window,
        buffered,
    })
}
