//! The rows of the algorithm table: how each algorithm is composed.
//!
//! The files in [`crate::algorithms`] define reduces, gathers and reduce-scatters. Combinators make the other collectives from
//! them: a reduce in reverse is a broadcast, a gather in reverse is a scatter, and a reduce followed by its reverse is an
//! all-reduce.

use super::algorithm::Algorithm;
use super::shape::Shape;
use crate::Collective::{self, *};
use crate::algorithms::*;
use crate::schedule::{Rank, Reverse, Schedule, Then, then_reverse};
use std::sync::Arc;

type Build = fn(Shape) -> Arc<dyn Schedule>;

const fn row(collective: Collective, name: &'static str, about: &'static str, build: Build) -> Algorithm {
    Algorithm::new(collective, name, about, build)
}

/// A table row for a pipelined algorithm.
const fn pipeline(
    collective: Collective,
    name: &'static str,
    about: &'static str,
    build: Build,
) -> Algorithm {
    let mut pipelined = Algorithm::new(collective, name, about, build);
    pipelined.pipelined = true;
    pipelined
}

/// The root that an algorithm uses internally for a collective without a root.
const FIRST: Rank = Rank(0);

/// The table of algorithms.
pub const ALGORITHMS: &[Algorithm] = &[
    row(AllReduce, "ring", "least bytes, most rounds", |shape| Arc::new(RingAllReduce(shape.ranks))),
    row(AllReduce, "halving_doubling", "least bytes in few rounds, nearest neighbour first", |shape| {
        Arc::new(halving_doubling(shape.ranks))
    }),
    row(AllReduce, "recursive_doubling", "fewest rounds: for small buffers", |shape| {
        Arc::new(recursive_doubling(shape.ranks))
    }),
    row(AllReduce, "direct", "least bytes for any rank count, n(n-1) connections", |shape| {
        Arc::new(direct(shape.ranks))
    }),
    row(AllReduce, "binomial", "reduce to rank 0 and broadcast along a binomial tree", |shape| {
        Arc::new(then_reverse(Binomial::reduce(shape.ranks, FIRST)))
    }),
    pipeline(AllReduce, "chain", "a pipeline along all ranks and back", |shape| {
        Arc::new(then_reverse(Chain { ranks: shape.ranks, root: Rank(shape.ranks - 1) }))
    }),
    pipeline(AllReduce, "binary_tree", "a pipeline up a binary tree and down again", |shape| {
        Arc::new(then_reverse(BinaryTree::new(shape.ranks, FIRST)))
    }),
    pipeline(
        AllReduce,
        "double_binary_tree",
        "two trees at once, full bandwidth at logarithmic latency",
        |shape| Arc::new(double_binary_tree(shape.ranks, FIRST, then_reverse)),
    ),
    row(AllReduce, "star", "all data to rank 0 and back: a parameter server", |shape| {
        Arc::new(Then::new(Star::reduce(shape.ranks, FIRST), Reverse(Star::collect(shape.ranks, FIRST))))
    }),
    row(AllReduce, "hierarchical", "inside each group, then across the groups", |shape| {
        Arc::new(then_reverse(hierarchical_scatter(shape.ranks, shape.group)))
    }),
    row(Broadcast, "binomial", "fewest rounds: for small buffers", |shape| {
        Arc::new(Reverse(Binomial::reduce(shape.ranks, shape.root)))
    }),
    pipeline(Broadcast, "chain", "a pipeline along all ranks", |shape| {
        Arc::new(Reverse(Chain { ranks: shape.ranks, root: shape.root }))
    }),
    pipeline(Broadcast, "binary_tree", "a pipeline down a binary tree", |shape| {
        Arc::new(Reverse(BinaryTree::new(shape.ranks, shape.root)))
    }),
    pipeline(
        Broadcast,
        "double_binary_tree",
        "two trees at once, full bandwidth at logarithmic latency",
        |shape| Arc::new(double_binary_tree(shape.ranks, shape.root, Reverse)),
    ),
    row(Broadcast, "scatter_all_gather", "binomial scatter, then a ring: for large buffers", |shape| {
        Arc::new(Then::new(
            Reverse(Binomial::gather(shape.ranks, shape.root)),
            Reverse(RingReduceScatter(shape.ranks)),
        ))
    }),
    row(Broadcast, "star", "the root sends to every rank", |shape| {
        Arc::new(Reverse(Star::collect(shape.ranks, shape.root)))
    }),
    row(Broadcast, "hierarchical", "across the groups, then inside each", |shape| {
        Arc::new(Reverse(hierarchical_reduce(shape.ranks, shape.group, shape.root)))
    }),
    row(AllGather, "ring", "only to neighbours, most rounds", |shape| {
        Arc::new(Reverse(RingReduceScatter(shape.ranks)))
    }),
    row(AllGather, "halving_doubling", "doubling what each rank holds, log2 n rounds", |shape| {
        Arc::new(Reverse(halving(shape.ranks)))
    }),
    row(AllGather, "bruck", "fewest messages for any rank count, with local copies", |shape| {
        Arc::new(BruckAllGather(shape.ranks))
    }),
    row(AllGather, "direct", "every rank to every other", |shape| Arc::new(DirectAllGather(shape.ranks))),
    row(AllGather, "binomial", "gather to rank 0 and broadcast along a binomial tree", |shape| {
        Arc::new(Then::new(
            Binomial::gather(shape.ranks, FIRST),
            Reverse(Binomial::reduce(shape.ranks, FIRST)),
        ))
    }),
    row(AllGather, "star", "all data to rank 0 and back", |shape| {
        Arc::new(Then::new(Star::gather(shape.ranks, FIRST), Reverse(Star::collect(shape.ranks, FIRST))))
    }),
    row(AllGather, "hierarchical", "across the groups, then inside each", |shape| {
        Arc::new(Reverse(hierarchical_scatter(shape.ranks, shape.group)))
    }),
    row(ReduceScatter, "ring", "only to neighbours, most rounds", |shape| {
        Arc::new(RingReduceScatter(shape.ranks))
    }),
    row(ReduceScatter, "halving_doubling", "halving what is left, log2 n rounds", |shape| {
        Arc::new(halving(shape.ranks))
    }),
    row(ReduceScatter, "direct", "every rank to every other, reduced locally", |shape| {
        Arc::new(DirectReduceScatter(shape.ranks))
    }),
    row(ReduceScatter, "binomial", "reduce to rank 0 and scatter along a binomial tree", |shape| {
        Arc::new(Then::new(
            Binomial::reduce(shape.ranks, FIRST),
            Reverse(Binomial::gather(shape.ranks, FIRST)),
        ))
    }),
    row(ReduceScatter, "star", "everything to rank 0, which hands out the results", |shape| {
        Arc::new(Then::new(Star::reduce(shape.ranks, FIRST), Reverse(Star::gather(shape.ranks, FIRST))))
    }),
    row(ReduceScatter, "hierarchical", "inside each group, then across the groups", |shape| {
        Arc::new(hierarchical_scatter(shape.ranks, shape.group))
    }),
    row(Reduce, "binomial", "fewest rounds: for small buffers", |shape| {
        Arc::new(Binomial::reduce(shape.ranks, shape.root))
    }),
    pipeline(Reduce, "chain", "a pipeline along all ranks", |shape| {
        Arc::new(Chain { ranks: shape.ranks, root: shape.root })
    }),
    pipeline(Reduce, "binary_tree", "a pipeline up a binary tree", |shape| {
        Arc::new(BinaryTree::new(shape.ranks, shape.root))
    }),
    pipeline(
        Reduce,
        "double_binary_tree",
        "two trees at once, full bandwidth at logarithmic latency",
        |shape| Arc::new(double_binary_tree(shape.ranks, shape.root, |tree| tree)),
    ),
    row(
        Reduce,
        "direct",
        "reduce-scatter by direct exchange, then a binomial gather: for large buffers",
        |shape| {
            Arc::new(Then::new(DirectReduceScatter(shape.ranks), Binomial::gather(shape.ranks, shape.root)))
        },
    ),
    row(Reduce, "star", "everything to the root, reduced there", |shape| {
        Arc::new(Star::reduce(shape.ranks, shape.root))
    }),
    row(Reduce, "hierarchical", "inside each group, then across the groups", |shape| {
        Arc::new(hierarchical_reduce(shape.ranks, shape.group, shape.root))
    }),
    row(Gather, "binomial", "fewest rounds: for small blocks", |shape| {
        Arc::new(Binomial::gather(shape.ranks, shape.root))
    }),
    row(Gather, "star", "every rank to the root: for large blocks", |shape| {
        Arc::new(Star::gather(shape.ranks, shape.root))
    }),
    row(Scatter, "binomial", "fewest rounds: for small blocks", |shape| {
        Arc::new(Reverse(Binomial::gather(shape.ranks, shape.root)))
    }),
    row(Scatter, "star", "the root to every rank: for large blocks", |shape| {
        Arc::new(Reverse(Star::gather(shape.ranks, shape.root)))
    }),
    row(AllToAll, "pairwise", "swaps in pairs, nothing stored in between: for large blocks", |shape| {
        Arc::new(Pairwise(shape.ranks))
    }),
    row(AllToAll, "bruck", "fewest messages, with local copies: for small blocks", |shape| {
        Arc::new(BruckAllToAll(shape.ranks))
    }),
    row(Barrier, "dissemination", "a signal of every rank reaches every other in log2 n rounds", |shape| {
        Arc::new(Dissemination(shape.ranks))
    }),
    row(Barrier, "recursive_doubling", "neighbour by neighbour in log2 n rounds", |shape| {
        Arc::new(recursive_doubling(shape.ranks))
    }),
    row(Barrier, "binomial", "to rank 0 and back along a binomial tree", |shape| {
        Arc::new(then_reverse(Binomial::reduce(shape.ranks, FIRST)))
    }),
    row(Barrier, "star", "to rank 0 and back", |shape| {
        Arc::new(Then::new(Star::reduce(shape.ranks, FIRST), Reverse(Star::collect(shape.ranks, FIRST))))
    }),
    row(SendRecv, "shift", "one message to the next rank", |shape| Arc::new(Shift(shape.ranks))),
];
