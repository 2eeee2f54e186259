//! A whole collective in one kernel: each chunk's reduction tree, and the buffers that receive the chunk.

use super::reduce::stem;
use super::{blocks, run};
use crate::{Arguments, Error, Family, Kernel, Memory, MemoryAccess, Queue, Result, Slice};
use allfold_kernels::{DType, ReduceOp};

/// The largest number of ranks of the kernel.
const MOST: usize = 64;

/// A reduction tree over buffers by number. Reduction is bitwise commutative, so the order of two children is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferTree {
    /// The buffer with this number.
    Leaf(u8),
    /// The reduction of two subtrees.
    Node(Box<BufferTree>, Box<BufferTree>),
}

impl BufferTree {
    /// The reduction of the trees `a` and `b`.
    pub fn node(a: BufferTree, b: BufferTree) -> BufferTree {
        BufferTree::Node(Box::new(a), Box::new(b))
    }

    /// The number of stack entries that evaluation needs if the deeper child is evaluated first (Sethi and Ullman, 1970).
    fn depth(&self) -> u32 {
        match self {
            BufferTree::Leaf(_) => 0,
            BufferTree::Node(a, b) => {
                let (a, b) = (a.depth(), b.depth());
                a.max(b).max(a.min(b) + 1)
            }
        }
    }

    /// Writes the tree in postfix order as (buffer, number of merges after it), the child that needs more stack first.
    fn write(&self, into: &mut Vec<[u8; 2]>) {
        match self {
            BufferTree::Leaf(rank) => into.push([*rank, 0]),
            BufferTree::Node(a, b) => {
                let (first, second) = if a.depth() >= b.depth() { (a, b) } else { (b, a) };
                first.write(into);
                second.write(into);
                if let Some(last) = into.last_mut() {
                    last[1] += 1;
                }
            }
        }
    }
}

/// A collective over buffers of one length: for each chunk a reduction tree, and the set of buffers that receive the chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trees {
    /// The first element of each chunk, then the end of the buffer.
    pub bounds: Vec<u64>,
    /// Each chunk's reduction tree, and a bit mask of the buffers that receive the chunk.
    pub chunks: Vec<(BufferTree, u64)>,
}

impl Trees {
    /// Uploads the kernel's tables to the device, where they stay as long as the collective is used.
    ///
    /// # Errors
    /// [`Error::Argument`] for a tree that is too deep or names an unknown buffer, or for bounds that do not fit the chunks.
    pub fn upload(&self, queue: &Queue, ranks: usize) -> Result<Uploaded> {
        let wrong = |what: String| Error::Argument(what);
        if ranks == 0 || ranks > MOST {
            return Err(wrong(format!("{ranks} ranks: a fused collective is over 1 to {MOST}")));
        }
        if self.bounds.len() != self.chunks.len() + 1 || !self.bounds.is_sorted() {
            return Err(wrong(format!("{} bounds, not {} chunks + 1", self.bounds.len(), self.chunks.len())));
        }
        // Every chunk has one entry per rank; the number 255 ends a shorter tree.
        let mut trees = Vec::new();
        for (tree, targets) in &self.chunks {
            let mut entries = Vec::new();
            tree.write(&mut entries);
            let inside = entries.iter().all(|entry| usize::from(entry[0]) < ranks);
            let targeted = ranks == MOST || targets >> ranks == 0;
            if entries.len() > ranks || !inside || !targeted || tree.depth() > 6 {
                return Err(wrong(format!(
                    "a tree of {} leaves does not fit {ranks} buffers",
                    entries.len()
                )));
            }
            entries.resize(ranks, [255, 0]);
            trees.extend(entries.into_iter().flatten());
        }
        let targets: Vec<u64> = self.chunks.iter().map(|chunk| chunk.1).collect();
        Ok(Uploaded {
            balanced: self.balanced(ranks),
            ranks: ranks as u32,
            chunks: self.chunks.len() as u32,
            end: self.bounds.last().copied().unwrap_or(0),
            longest: self.bounds.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0),
            spans: self.spans(ranks),
            bounds: queue.upload(&self.bounds)?,
            trees: queue.upload(&trees)?,
            targets: queue.upload(&targets)?,
        })
    }

    /// Whether the collective is one balanced tree over all buffers in order, a power of two of them, received by all.
    fn balanced(&self, ranks: usize) -> bool {
        fn over(tree: &BufferTree, first: u8, count: u8) -> bool {
            match tree {
                BufferTree::Leaf(rank) => count == 1 && *rank == first,
                BufferTree::Node(a, b) => {
                    let half = count / 2;
                    let halves = |a, b| over(a, first, half) && over(b, first + half, half);
                    count > 1 && (halves(a, b) || halves(b, a))
                }
            }
        }
        match &self.chunks[..] {
            [(tree, targets)] if ranks.is_power_of_two() => {
                *targets == u64::MAX >> (MOST - ranks) && over(tree, 0, ranks as u8)
            }
            _ => false,
        }
    }

    /// The ranges of each buffer that are read and written. Neighbouring chunks of equal use form one range.
    fn spans(&self, ranks: usize) -> Vec<Span> {
        fn leaves(tree: &BufferTree) -> u64 {
            match tree {
                BufferTree::Leaf(rank) => 1 << rank,
                BufferTree::Node(a, b) => leaves(a) | leaves(b),
            }
        }
        let uses = self.chunks.iter().map(|(tree, targets)| (leaves(tree), *targets));
        let chunks: Vec<_> =
            self.bounds.windows(2).zip(uses).filter(|(bounds, _)| bounds[0] < bounds[1]).collect();
        let mut spans: Vec<Span> = Vec::new();
        for rank in 0..ranks {
            for write in [false, true] {
                let before = spans.len();
                for (bounds, (read, written)) in &chunks {
                    match spans[before..].last_mut() {
                        _ if if write { *written } else { *read } >> rank & 1 == 0 => {}
                        Some(last) if last.end == bounds[0] => last.end = bounds[1],
                        _ => spans.push(Span { rank, begin: bounds[0], end: bounds[1], write }),
                    }
                }
            }
        }
        spans
    }
}

/// A range of elements of a rank's buffer that a fused collective reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    rank: usize,
    begin: u64,
    end: u64,
    write: bool,
}

/// The tables of [`Trees`] on a device.
#[derive(Debug)]
pub struct Uploaded {
    balanced: bool,
    ranks: u32,
    chunks: u32,
    end: u64,
    longest: u64,
    spans: Vec<Span>,
    bounds: Memory,
    trees: Memory,
    targets: Memory,
}

impl Uploaded {
    /// Whether the collective is one balanced tree over all buffers, received by all; [`fused_balanced`] computes it for 2, 4 or 8.
    pub fn is_balanced(&self) -> bool {
        self.balanced
    }
}

/// The addresses of up to 64 buffers, padded with zeros, and the buffers' common length in elements.
fn addresses(dtype: DType, buffers: &[Slice<'_>]) -> Result<([u64; MOST], u64)> {
    let mut all = [0; MOST];
    let n = buffers.first().map_or(Ok(0), |buffer| buffer.elements(dtype.size()))?;
    if buffers.len() > MOST {
        return Err(Error::Argument(format!(
            "{} ranks: a fused collective is over {MOST} at most",
            buffers.len()
        )));
    }
    for (place, buffer) in all.iter_mut().zip(buffers) {
        super::holds("a rank's buffer", *buffer, n, dtype.size())?;
        *place = buffer.address();
    }
    Ok((all, n))
}

/// Evaluates every chunk's tree over all buffers and writes the result to the buffers that receive the chunk. The result is divided
/// by `parts`, unless `parts` is 0.
///
/// # Errors
/// [`Error::Argument`] if the buffers do not have the trees' length and number.
pub fn fused(
    queue: &Queue,
    dtype: DType,
    op: ReduceOp,
    trees: &Uploaded,
    buffers: &[Slice<'_>],
    parts: u32,
) -> Result<()> {
    let (all, n) = addresses(dtype, buffers)?;
    if buffers.len() != trees.ranks as usize || n != trees.end {
        let (have, want) = (buffers.len(), trees.ranks);
        return Err(Error::Argument(format!(
            "{have} buffers of {n} elements were passed where {want} of {} are needed",
            trees.end
        )));
    }
    if n == 0 {
        return Ok(());
    }
    let kernel = Kernel::typed(Family::Fused, &format!("fused_{}", stem(op)), dtype);
    let arguments = Arguments::new().with(all).with(trees.ranks).with(trees.chunks);
    let arguments = arguments.reads(trees.bounds.all()).reads(trees.trees.all()).reads(trees.targets.all());
    let size = dtype.size() as u64;
    let arguments = arguments.with(parts).notes(trees.spans.iter().map(|span| MemoryAccess {
        address: all[span.rank] + span.begin * size,
        bytes: (span.end - span.begin) * size,
        write: span.write,
    }));
    let rows = trees.chunks.min(1024);
    let columns = blocks(queue, trees.longest, (16 / dtype.size() as u64).min(8)).div_ceil(rows).max(1);
    run(queue, kernel, [columns, rows, 1], arguments)
}

/// Sums 2, 4 or 8 float buffers by the balanced tree, unrolled, and writes the sum to all of them. `false`, and nothing is written, for other
/// operators, types or numbers of buffers.
///
/// # Errors
/// [`Error::Argument`] if the buffers differ in length.
pub fn fused_balanced(
    queue: &Queue,
    dtype: DType,
    op: ReduceOp,
    buffers: &[Slice<'_>],
    parts: u32,
) -> Result<bool> {
    let float = matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::Bf16);
    let sum = matches!(op, ReduceOp::Sum | ReduceOp::Avg);
    if !(float && sum && matches!(buffers.len(), 2 | 4 | 8)) {
        return Ok(false);
    }
    let (all, n) = addresses(dtype, buffers)?;
    if n == 0 {
        return Ok(true);
    }
    let kernel = Kernel::typed(Family::Fused, &format!("fused{}_sum", buffers.len()), dtype);
    let arguments = Arguments::new().with(all).with(parts).with(n);
    let arguments =
        buffers.iter().fold(arguments, |a, buffer| a.touches(*buffer, false).touches(*buffer, true));
    run(queue, kernel, [blocks(queue, n, 16 / dtype.size() as u64), 1, 1], arguments)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_written_where_it_receives_and_read_where_a_tree_names_it() {
        let pair = || BufferTree::node(BufferTree::Leaf(0), BufferTree::Leaf(1));
        // Ranks 0 and 1 receive the first two chunks, rank 1 alone the third. The fourth is empty and adds no span. Rank 2 receives
        // the fifth from rank 0.
        let trees = Trees {
            bounds: vec![0, 4, 8, 12, 12, 20],
            chunks: vec![
                (pair(), 0b11),
                (pair(), 0b11),
                (pair(), 0b10),
                (pair(), 0b11),
                (BufferTree::Leaf(0), 0b100),
            ],
        };
        let span = |rank, begin, end, write| Span { rank, begin, end, write };
        let want = [
            span(0, 0, 20, false),
            span(0, 0, 8, true),
            span(1, 0, 12, false),
            span(1, 0, 12, true),
            span(2, 12, 20, true),
        ];
        assert_eq!(trees.spans(3), want);
    }
}
