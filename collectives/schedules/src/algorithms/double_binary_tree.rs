//! Double binary tree: two binary trees at the same time, each for one half of the data. A rank other than the root that is an
//! inner node of one tree is a leaf of the other.
//!
//! ```text
//! 6 ranks, root 0     lane 0    0 <- 1 <- 2 <- 4         lane 1    0 <- 5 <- 4 <- 2
//!                                    |    +--- 5                        |    +--- 1
//!                                    +--- 3                             +--- 3
//! ```
//!
//! Cost of an all-reduce in segments: 4 ceil(log2 n) rounds for the first segment, 4 for each further one. Each rank sends and
//! receives at most twice the data, so the time is about 2 depth alpha + 2 S beta. Order positional: each half has its own tree.
//! Source: P. Sanders, J. Speck and J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan", Parallel Comput. 35 (2009).

use super::BinaryTree;
use crate::schedule::{Lanes, Rank, Schedule};

/// Both trees, each transformed by `how`: unchanged for a reduction to the root, reversed for a broadcast, followed by its reverse
/// for an all-reduce. An inner rank of one tree has few steps in the other, so segments can follow each other as closely as in a
/// single tree.
pub fn double_binary_tree<S: Schedule>(ranks: u32, root: Rank, how: impl Fn(BinaryTree) -> S) -> Lanes<S> {
    let trees: Vec<S> =
        [false, true].into_iter().map(|mirrored| how(BinaryTree { ranks, root, mirrored })).collect();
    let stride = trees.iter().map(S::stride).max().unwrap_or(0);
    Lanes::new(trees).at_stride(stride)
}
