//! The fused form: the reduction trees that the symbolic checker finds in a schedule, as tables for one kernel.

use super::job::DeviceCollective;
use crate::check::{Forest, Proof, Tree, symbolic};
use crate::driver::failed;
use crate::schedule::Schedule;
use crate::{Error, Geometry, Rank, ReduceOp, Result};
use allfold_cuda::{Queue, Slice, launch};

/// The tree of the result in a chunk's segment, and the ranks that end with it, as bits; `None` if no rank does. The result is the whole
/// reduction, or for a collective without reductions the final value.
fn result(
    proof: &Proof,
    job: &DeviceCollective,
    ranks: u32,
    chunk: u32,
    segment: u32,
) -> Result<Option<(Tree, u64)>> {
    let mut found: Option<(Tree, u64)> = None;
    for rank in (0..ranks).map(Rank) {
        let Some((tree, from)) = proof.value(rank, chunk, segment) else { continue };
        if job.algorithm.collective.reduces() && !proof.forest().is_every_rank_once(tree) {
            continue;
        }
        match &mut found {
            _ if from != chunk => return Err(elsewhere(job)),
            None => found = Some((tree, 1 << rank.0)),
            Some((known, targets)) if *known == tree => *targets |= 1 << rank.0,
            Some(_) => return Err(elsewhere(job)),
        }
    }
    Ok(found)
}

fn elsewhere(job: &DeviceCollective) -> Error {
    let what = "leaves ranks with different values of a chunk, or moves a chunk";
    Error::Argument(format!("{:?} {what}; the fused kernel is only for schedules that do not", job.algorithm))
}

fn tree(forest: &Forest, of: Tree) -> launch::BufferTree {
    match forest.children(of) {
        Some((a, b)) => launch::BufferTree::node(tree(forest, a), tree(forest, b)),
        // A leaf of the forest is a rank; there are at most 64 ranks.
        None => {
            launch::BufferTree::Leaf(forest.heard(of).iter().position(|heard| *heard > 0).unwrap_or(0) as u8)
        }
    }
}

/// The tables of a job over buffers with this geometry.
pub(super) fn tables(
    job: &DeviceCollective,
    schedule: &dyn Schedule,
    geometry: &Geometry,
) -> Result<launch::Trees> {
    let proof = symbolic(schedule, job.algorithm.collective, job.root)
        .map_err(|flaw| Error::Argument(format!("{:?} is wrong: {flaw}", job.algorithm)))?;
    let mut pieces = Vec::new();
    for chunk in 0..schedule.chunks() {
        for segment in 0..schedule.segments() {
            let range = geometry.piece(chunk, segment);
            if let Some((of, targets)) = result(&proof, job, schedule.ranks(), chunk, segment)?
                && !range.is_empty()
            {
                pieces.push((range, tree(proof.forest(), of), targets));
            }
        }
    }
    pieces.sort_by_key(|(range, ..)| range.start);
    let mut trees = launch::Trees { bounds: vec![0], chunks: Vec::new() };
    let mut at = 0;
    for (range, tree, targets) in pieces {
        // A chunk that no rank receives is not written.
        if range.start > at {
            trees.chunks.push((launch::BufferTree::Leaf(0), 0));
            trees.bounds.push(range.start);
        }
        match trees.chunks.last() {
            // Neighbouring chunks with equal trees become one chunk: with a canonical algorithm, the whole buffer.
            Some((known, to)) if *known == tree && *to == targets => {
                trees.bounds.pop();
            }
            _ => trees.chunks.push((tree, targets)),
        }
        trees.bounds.push(range.end);
        at = range.end;
    }
    if at < geometry.count() {
        trees.chunks.push((launch::BufferTree::Leaf(0), 0));
        trees.bounds.push(geometry.count());
    }
    Ok(trees)
}

/// Queues the fused kernel: the unrolled form for balanced trees that it supports, otherwise the form that reads tables.
pub(super) fn run(
    queue: &Queue,
    job: &DeviceCollective,
    tables: &launch::Uploaded,
    buffers: &[Slice<'_>],
) -> Result<()> {
    let parts =
        if job.op == ReduceOp::Avg && job.algorithm.collective.reduces() { buffers.len() as u32 } else { 0 };
    if tables.is_balanced()
        && launch::fused_balanced(queue, job.dtype, job.op, buffers, parts).map_err(failed)?
    {
        return Ok(());
    }
    launch::fused(queue, job.dtype, job.op, tables, buffers, parts).map_err(failed)
}
