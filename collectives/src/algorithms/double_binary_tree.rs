//! Double binary tree: two binary trees at once, each for half of the data; whoever is inside one is a leaf of the
//! other.
//!
//! ```text
//! 6 ranks, root 0     lane 0: 0 <- 1 <- 2, 3 <- 4, 5 (of 2)      lane 1: 0 <- 5 <- 4, 3 <- 2, 1 (of 4)
//! ```
//!
//! Cost of an all-reduce in segments: about 2 depth + 2m rounds of 1/2m of the bytes; so each rank sends and receives
//! no more than the data twice, in logarithmic latency. Order positional: each half has its own tree.
//! Source: P. Sanders, J. Speck and J. L. Träff (2009).

use super::BinaryTree;
use crate::schedule::{Lanes, Rank, Schedule};

/// Both trees, each seen through `how`: as it is for a reduce to the root, backwards for a broadcast from it, there
/// and back for an all-reduce.
pub fn double_binary_tree<S: Schedule>(ranks: u32, root: Rank, how: impl Fn(BinaryTree) -> S) -> Lanes<S> {
    Lanes::new([false, true].into_iter().map(|mirrored| how(BinaryTree { ranks, root, mirrored })).collect())
}
