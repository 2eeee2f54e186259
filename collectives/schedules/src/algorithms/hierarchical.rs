//! Hierarchical: first within each group, where links are fast, then across the groups with the rest of the data.
//!
//! ```text
//! 8 ranks in groups of 4     reduce-scatter inside 0..4 and 4..8      across 0-4 1-5 2-6 3-7      and back
//! ```
//!
//! Cost of an all-reduce of n = g x m ranks: 2(log2 g + log2 m) rounds, 2(n-1)/n of the bytes per rank, of which only 2(m-1)/n
//! cross the groups. Canonical order if g and m are powers of two; otherwise usually uniform.
//! Source: Y. Ueno and R. Yokota, "Exhaustive study of hierarchical all-reduce patterns for large messages between
//! GPUs", CCGrid 2019.

use super::{Binomial, halving};
use crate::schedule::{Over, Rank, Schedule};

/// A reduce-scatter by halving within groups of `group` ranks, then across the groups. In reverse, the schedule is the all-gather;
/// followed by its reverse, the all-reduce. `group` must divide `ranks`.
pub fn hierarchical_scatter(ranks: u32, group: u32) -> impl Schedule + Clone {
    Over::new(halving(group), halving(ranks / group))
}

/// A reduction to one rank of each group, then to the root. In reverse, the schedule is the broadcast. `group` must divide `ranks`.
pub fn hierarchical_reduce(ranks: u32, group: u32, root: Rank) -> impl Schedule + Clone {
    let inside = Binomial::reduce(group, Rank(root.0 % group));
    Over::new(inside, Binomial::reduce(ranks / group, Rank(root.0 / group)))
}
