//! Tests of fused.cu: every chunk equals its tree as the CPU evaluates it, and only the ranks that receive a chunk are written.

use crate::common::{Random, raw, same};
use allfold_cuda::Queue;
use allfold_cuda::launch::{self, BufferTree, Trees};
use allfold_kernels::{Element, ReduceOp, bf16, divide, f16, reduce};

pub fn check(queue: &Queue) {
    crate::for_elements!(typed, queue);
    for dtype_lengths in [0, 1, 5, 1000, 4101] {
        balanced::<f64>(queue, dtype_lengths);
        balanced::<f32>(queue, dtype_lengths);
        balanced::<f16>(queue, dtype_lengths);
        balanced::<bf16>(queue, dtype_lengths);
    }
    refusals(queue);
}

/// A random tree over some of the buffers.
fn any_tree(leaves: &mut Vec<u8>, random: &mut Random) -> BufferTree {
    let mut forest: Vec<BufferTree> = leaves.drain(..).map(BufferTree::Leaf).collect();
    while forest.len() > 1 {
        let a = forest.swap_remove(random.below(forest.len()));
        let b = forest.swap_remove(random.below(forest.len()));
        forest.push(BufferTree::node(a, b));
    }
    forest.remove(0)
}

fn fold<T: Element>(
    tree: &BufferTree,
    op: ReduceOp,
    buffers: &[Vec<T>],
    range: std::ops::Range<usize>,
) -> Vec<T> {
    match tree {
        BufferTree::Leaf(rank) => buffers[usize::from(*rank)][range].to_vec(),
        BufferTree::Node(a, b) => {
            let mut into = fold(a, op, buffers, range.clone());
            reduce(op, &mut into, &fold(b, op, buffers, range));
            into
        }
    }
}

fn typed<T: Element>(queue: &Queue) {
    let mut random = Random(5);
    for (ranks, n) in [(1, 40), (2, 0), (3, 333), (5, 1000), (8, 4101), (64, 130)] {
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg] {
            // Uneven chunks. The second chunk is empty, and its tree is one rank; the other trees are over all ranks.
            let mut bounds = vec![0, n as u64 / 3, n as u64 / 3, n as u64 * 3 / 4, n as u64];
            bounds.sort_unstable();
            let chunks: Vec<(BufferTree, u64)> = (0..4)
                .map(|nth| {
                    let mut leaves: Vec<u8> = (0..ranks as u8).collect();
                    leaves.truncate(if nth == 1 { 1 } else { ranks });
                    let targets = random.bits() & (u64::MAX >> (64 - ranks));
                    (any_tree(&mut leaves, &mut random), targets)
                })
                .collect();
            let buffers: Vec<Vec<T>> = (0..ranks).map(|rank| raw(n, 1000 + rank as u64)).collect();
            let parts = if op == ReduceOp::Avg { ranks as u32 } else { 0 };
            let mut want = buffers.clone();
            for (bounds, (tree, targets)) in bounds.windows(2).zip(&chunks) {
                let range = bounds[0] as usize..bounds[1] as usize;
                let mut result = fold(tree, op, &buffers, range.clone());
                if parts > 0 {
                    divide(&mut result, parts);
                }
                let receives = |rank: &usize| targets >> rank & 1 == 1;
                (0..ranks)
                    .filter(receives)
                    .for_each(|rank| want[rank][range.clone()].copy_from_slice(&result));
            }
            let memories: Vec<_> = buffers.iter().map(|buffer| queue.upload(buffer).unwrap()).collect();
            let slices: Vec<_> = memories.iter().map(|memory| memory.all()).collect();
            let trees = Trees { bounds, chunks }.upload(queue, ranks).unwrap();
            launch::fused(queue, T::DTYPE, op, &trees, &slices, parts).unwrap();
            for (rank, (slice, want)) in slices.iter().zip(&want).enumerate() {
                let what = format!("fused_{op}_{}, {ranks} ranks, {n} elements, rank {rank}", T::DTYPE);
                same(&what, &queue.download::<T>(*slice).unwrap(), want);
            }
        }
    }
}

fn balanced<T: Element>(queue: &Queue, n: usize) {
    for ranks in [2, 4, 8] {
        let buffers: Vec<Vec<T>> = (0..ranks).map(|rank| raw(n, 2000 + rank as u64)).collect();
        let mut level = buffers.clone();
        while level.len() > 1 {
            for pair in level.chunks_mut(2) {
                let (a, b) = pair.split_at_mut(1);
                reduce(ReduceOp::Sum, &mut a[0], &b[0]);
            }
            level = level.into_iter().step_by(2).collect();
        }
        divide(&mut level[0], ranks as u32);
        let memories: Vec<_> = buffers.iter().map(|buffer| queue.upload(buffer).unwrap()).collect();
        let slices: Vec<_> = memories.iter().map(|memory| memory.all()).collect();
        assert!(launch::fused_balanced(queue, T::DTYPE, ReduceOp::Avg, &slices, ranks as u32).unwrap());
        for slice in slices {
            same(
                &format!("fused{ranks}_sum_{} of {n}", T::DTYPE),
                &queue.download::<T>(slice).unwrap(),
                &level[0],
            );
        }
    }
}

fn refusals(queue: &Queue) {
    let trees = |bounds: &[u64], tree: BufferTree, targets| Trees {
        bounds: bounds.to_vec(),
        chunks: vec![(tree, targets)],
    };
    assert!(trees(&[0, 8], BufferTree::Leaf(2), 1).upload(queue, 2).is_err(), "a buffer that is not there");
    assert!(trees(&[0, 8], BufferTree::Leaf(0), 4).upload(queue, 2).is_err(), "a receiver that is not there");
    assert!(trees(&[8, 0], BufferTree::Leaf(0), 1).upload(queue, 2).is_err(), "bounds backwards");
    let uploaded = trees(&[0, 8], BufferTree::Leaf(0), 1).upload(queue, 2).unwrap();
    let memory = queue.memory(28).unwrap();
    let dtype = allfold_kernels::DType::F32;
    let short = [memory.all(), memory.all()];
    assert!(launch::fused(queue, dtype, ReduceOp::Sum, &uploaded, &short, 0).is_err(), "7 elements for 8");
}
