//! Matrix products over operands that need not be matrices; linear layers, convolutions and attention use them.
//!
//! ```text
//!                 NC columns, packed in panels of 48           a depth of at most 384 at a time
//!               .----.----.----.
//!        k      |    |    |    |            for each block of columns (or of rows), on any thread:
//!               '----'----'----'              for each depth:
//!  m  [ 8 rows ] (8x48)(  )(  )                 pack the right operand's block (this is where a convolution
//!     [ 8 rows ]                                  gathers its patches)
//!                                               for each 8 rows, for each panel: one tile, in registers
//! ```
//!
//! The left operand is read in place, through [`Walk`]s. A column-major left operand is copied first, eight rows at a time, since large
//! steps would map many lines to a few sets of the cache. After K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix
//! Multiplication" (ACM TOMS 34(3), 2008).
//!
//! An element is a sum over depths, each a chain of fused multiply-adds in order of k. This order depends on k alone, so neither the
//! blocks nor the number of threads changes a bit.

mod pack;
mod tile;

pub(super) use pack::{Lines, Patches, Right, transpose};

use pack::{Direct, copy};

use super::Float;
use super::simd::compiled_here;
use super::thread_pool::{self, share};
use std::cell::RefCell;
use std::ops::Range;
use tile::{ROWS, Target, VECTOR, WIDTH};

/// The longest chain of additions, and so the depth of a packed block.
const DEPTH: usize = 384;
/// The number of panels in a packed block: with `DEPTH`, 737 kB of f32.
const PANELS: usize = 10;
/// The number of strips of a transposed operand that are filled together: 32 rows, which are two cache lines of f32.
const SIDE_BY_SIDE: usize = 4;
/// Products with fewer multiply-adds than this use one thread.
const SMALL: usize = 400_000;

/// The positions of the left operand's elements: element (i, k) is at `row(i) + at(k)`, where k counts through three nested loops,
/// the innermost last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    /// The number of iterations of each loop; their product is the depth.
    pub counts: [usize; 3],
    /// The distance in elements from one iteration to the next, for each loop.
    pub steps: [usize; 3],
}

impl Walk {
    /// A walk of `count` steps of the same length.
    pub fn straight(count: usize, step: usize) -> Walk {
        Walk { counts: [1, 1, count], steps: [0, 0, step] }
    }

    fn is_straight(&self) -> bool {
        self.counts[..2] == [1, 1]
    }

    #[inline]
    fn at(&self, k: usize) -> usize {
        if self.is_straight() {
            return k * self.steps[2];
        }
        let [_, rows, cols] = self.counts;
        k / (rows * cols) * self.steps[0] + k / cols % rows * self.steps[1] + k % cols * self.steps[2]
    }

    /// The walk over the range `ks` alone, and its start. `ks` begins and ends between iterations of a loop.
    fn cut(&self, ks: &Range<usize>) -> (usize, Walk) {
        let [_, rows, cols] = self.counts;
        let (length, start) = (ks.len(), self.at(ks.start));
        let counts = if length.is_multiple_of(rows * cols) && ks.start.is_multiple_of(rows * cols) {
            [length / (rows * cols), rows, cols]
        } else if length.is_multiple_of(cols) && ks.start.is_multiple_of(cols) {
            [1, length / cols, cols]
        } else {
            [1, 1, length]
        };
        (start, Walk { counts, ..*self })
    }

    /// The ranges of k, in order: as equal as the loops allow, and none longer than `DEPTH` where a loop can be cut.
    fn depths(&self) -> Vec<Range<usize>> {
        let [samples, rows, cols] = self.counts;
        let (unit, units, limit) = if rows * cols <= DEPTH && samples > 1 {
            (rows * cols, samples, samples)
        } else if cols <= DEPTH && rows > 1 {
            // A range of k must not span two samples.
            (cols, samples * rows, rows)
        } else {
            return (0..samples * rows)
                .flat_map(|line| whole_vectors(cols).map(move |r| r.start + line * cols..r.end + line * cols))
                .collect();
        };
        let each = equal(limit, (DEPTH / unit).max(1));
        (0..units / limit)
            .flat_map(|turn| {
                each.iter().map(move |r| (turn * limit + r.start) * unit..(turn * limit + r.end) * unit)
            })
            .collect()
    }
}

/// Cuts 0..count into the fewest nearly equal pieces of at most `most`.
fn equal(count: usize, most: usize) -> Vec<Range<usize>> {
    let parts = count.div_ceil(most);
    (0..parts).map(|part| count * part / parts..count * (part + 1) / parts).collect()
}

/// Cuts 0..count into the fewest nearly equal pieces of at most `DEPTH` that begin at whole vectors, so that a transposed operand
/// is packed by whole vectors alone.
fn whole_vectors(count: usize) -> impl Iterator<Item = Range<usize>> {
    let pieces = equal(count.div_ceil(VECTOR), DEPTH / VECTOR);
    pieces.into_iter().map(move |r| r.start * VECTOR..(r.end * VECTOR).min(count))
}

/// The left operand: its data, and the walks from row to row and along a row.
#[derive(Clone, Copy)]
pub(super) struct Left<'a, F> {
    pub data: &'a [F],
    pub rows: Walk,
    pub walk: Walk,
}

/// The positions of the output's elements: (i, j) is at `base + i row + j / plane * sample + j % plane`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub base: usize,
    pub row: usize,
    pub plane: usize,
    pub sample: usize,
}

impl Place {
    /// The positions of a matrix whose rows begin `row` elements apart.
    pub fn matrix(row: usize) -> Place {
        Place { base: 0, row, plane: usize::MAX, sample: 0 }
    }

    fn at(&self, j: usize) -> usize {
        self.base + j / self.plane * self.sample + j % self.plane
    }
}

/// The output of a product. Several threads write to it, each its own elements.
#[derive(Clone, Copy)]
pub(super) struct Out<F> {
    start: *mut F,
    length: usize,
}

#[allow(unsafe_code, reason = "threads write disjoint elements")]
// SAFETY: a task of `gemm` writes only the elements of its own rows and columns, and `Place` gives different elements different
// positions, as its users in this module ensure.
unsafe impl<F: Send> Sync for Out<F> {}

compiled_here! {
/// Computes the m x n product `out = left . right`, or adds it to `out`. Other positions of `out` stay unchanged.
///
/// # Panics
/// If an operand or the output is shorter than its description requires.
pub(super) fn gemm<F>(size: (usize, usize), left: Left<F>, right: Right<F>, out: (&mut [F], Place), add: bool) {
    let ((m, n), (out, place)) = (size, out);
    if m == 0 || n == 0 {
        return;
    }
    let k: usize = left.walk.counts.iter().product();
    assert!(place.at(n - 1) + (m - 1) * place.row < out.len(), "the output of a product is too short");
    let longest = (0..3).map(|l| left.walk.counts[l].saturating_sub(1) * left.walk.steps[l]).sum::<usize>();
    let furthest = (0..m).map(|i| left.rows.at(i)).max().unwrap_or_default();
    assert!(k == 0 || furthest + longest < left.data.len(), "the left operand of a product is too short");
    let out = Out { start: out.as_mut_ptr(), length: out.len() };

    let threads = if m * n * k < SMALL { 1 } else { thread_pool::threads() };
    let (blocks, strips) = cuts(m, n, threads);
    // Columns are cut between panels; where panels are few, between vectors, so that blocks are nearly equal.
    let unit = if n.div_ceil(WIDTH) < 4 * blocks { VECTOR } else { WIDTH };
    let (units, tiles) = (n.div_ceil(unit), m.div_ceil(ROWS));
    let depths = left.walk.depths();
    let run = left.walk.is_straight();
    let apart = left.walk.steps[2];
    let transposed = run && apart >= m.max(2) && (1..m).all(|i| left.rows.at(i) == left.rows.at(i - 1) + 1);
    // Reading in place needs rows that are one run of k, and a kernel for the element type.
    let direct = if run && tile::targets::<F>() { right.direct(m, n, k) } else { None };
    let task = |task: usize| {
        let (block, strip) = (task / strips, task % strips);
        let rows = tiles * strip / strips * ROWS..(tiles * (strip + 1) / strips * ROWS).min(m);
        let cols = units * block / blocks * unit..(units * (block + 1) / blocks * unit).min(n);
        Block { left: &left, transposed, out, place, rows, cols, add }.run(&right, direct.as_ref(), &depths);
    };
    match threads {
        1 => (0..blocks * strips).for_each(task),
        _ => share(blocks * strips, task),
    }
}
}

/// How an m x n output is cut for this many threads: (blocks of columns, strips of rows). Every strip of rows packs the same
/// columns again, which costs little where there are many rows.
fn cuts(m: usize, n: usize, threads: usize) -> (usize, usize) {
    let blocks = n.div_ceil(WIDTH).div_ceil(PANELS);
    if threads > 1 && m >= n.max(4 * ROWS * threads) {
        return (blocks, threads);
    }
    let blocks = blocks.next_multiple_of(threads).min(n.div_ceil(VECTOR));
    (blocks, if blocks < threads { threads.min(m.div_ceil(ROWS)) } else { 1 })
}

/// A task of a product: some rows and columns of the output, over the whole depth.
struct Block<'a, F> {
    left: &'a Left<'a, F>,
    /// Whether the left operand is column-major: its rows are adjacent, and the next k is further away than all rows.
    transposed: bool,
    out: Out<F>,
    place: Place,
    rows: Range<usize>,
    cols: Range<usize>,
    add: bool,
}

impl<F: Float> Block<'_, F> {
    fn run(&self, right: &Right<F>, direct: Option<&Direct<F>>, depths: &[Range<usize>]) {
        if depths.is_empty() && !self.add {
            let zeros = [F::ZERO; ROWS * WIDTH];
            for (i, cols) in self.tiles() {
                self.store(i, cols, &zeros, false);
            }
        }
        if let Some(direct) = direct {
            for (turn, ks) in depths.iter().enumerate() {
                self.depth_direct(ks, direct, self.add || turn > 0);
            }
            return;
        }
        let deepest = depths.iter().map(Range::len).max().unwrap_or_default();
        with_thread_scratch(deepest * self.cols.len().next_multiple_of(VECTOR), |packed| {
            for (turn, ks) in depths.iter().enumerate() {
                let packed = self.pack(right, ks, packed);
                self.depth(ks, packed, self.add || turn > 0);
            }
        });
    }

    fn tiles(&self) -> impl Iterator<Item = (usize, Range<usize>)> + use<'_, F> {
        self.rows.clone().step_by(ROWS).flat_map(move |i| self.panels().map(move |cols| (i, cols)))
    }

    /// The columns of each panel. Two panels of 32 columns are faster than a panel of 48 and a panel of 16.
    fn panels(&self) -> impl Iterator<Item = Range<usize>> + use<F> {
        let Range { mut start, end } = self.cols;
        std::iter::from_fn(move || {
            let left = end - start;
            let width = if (WIDTH + 1..=4 * VECTOR).contains(&left) { 2 * VECTOR } else { WIDTH.min(left) };
            start += width;
            (width > 0).then_some(start - width..start)
        })
    }

    /// Packs the panels of this block's columns, one after another, each as `ks.len()` lines of the panel's width.
    fn pack<'s>(&self, right: &Right<F>, ks: &Range<usize>, memory: &'s mut [F]) -> &'s [F] {
        let all = &mut memory[..ks.len() * self.cols.len().next_multiple_of(VECTOR)];
        let mut rest = &mut *all;
        for cols in self.panels() {
            let (panel, after) = rest.split_at_mut(ks.len() * cols.len().next_multiple_of(VECTOR));
            right.pack(ks.clone(), cols, panel);
            rest = after;
        }
        all
    }

    /// Eight rows of the left operand from row `i` on: (data, start of each row, walk along a row). The rows of a column-major
    /// operand are in `strips`, which [`Block::gather`] has filled from row `first` on.
    fn rows_of<'s>(
        &'s self,
        i: usize,
        ks: &Range<usize>,
        (first, strips): (usize, &'s [F]),
    ) -> (&'s [F], [usize; ROWS], Walk) {
        if !self.transposed {
            let (last, (start, walk)) = (self.rows.end - 1, self.left.walk.cut(ks));
            let rows = std::array::from_fn(|r| self.left.rows.at((i + r).min(last)) + start);
            return (self.left.data, rows, walk);
        }
        let strip = &strips[(i - first) / ROWS * self.strip(ks.len())..];
        (strip, std::array::from_fn(|r| r), Walk::straight(ks.len(), ROWS))
    }

    /// Copies rows of a column-major operand to strips, each of eight rows, with eight elements for every k. Several strips are
    /// filled together, so that a cache line of the operand is read once for all of them.
    fn gather(&self, rows: Range<usize>, ks: &Range<usize>, strips: &mut [F]) {
        if !self.transposed || ks.is_empty() {
            return;
        }
        let (step, each, count) = (self.left.walk.steps[2], self.strip(ks.len()), rows.len());
        let lines = &self.left.data[self.left.rows.at(rows.start) + ks.start * step..];
        if count == SIDE_BY_SIDE * ROWS && pack::vectors::<F>() {
            return pack::strips(lines, step, ks.len(), strips);
        }
        for (tile, strip) in (0..count).step_by(ROWS).zip(strips.chunks_exact_mut(each)) {
            let count = ROWS.min(count - tile);
            for (to, from) in strip.chunks_exact_mut(ROWS).zip(lines.chunks(step)) {
                let from = &from[tile..];
                if count == ROWS {
                    copy::<F, ROWS>(to, from);
                } else {
                    to[..count].copy_from_slice(&from[..count]);
                    to[count..].fill(F::ZERO);
                }
            }
        }
    }

    /// The ranges of rows that [`Block::gather`] copies together.
    fn pieces(&self) -> impl Iterator<Item = Range<usize>> + use<F> {
        let Range { start, end } = self.rows;
        (start..end).step_by(SIDE_BY_SIDE * ROWS).map(move |i| i..(i + SIDE_BY_SIDE * ROWS).min(end))
    }

    /// The number of elements of a strip of eight rows over `ks` values of k; 0 if the left operand is not copied.
    fn strip(&self, ks: usize) -> usize {
        if self.transposed { ROWS * ks } else { 0 }
    }

    fn depth(&self, ks: &Range<usize>, packed: &[F], add: bool) {
        let mut tile = [F::ZERO; ROWS * WIDTH];
        with_thread_scratch(SIDE_BY_SIDE * self.strip(ks.len()), |strips| {
            for piece in self.pieces() {
                self.gather(piece.clone(), ks, strips);
                for i in piece.clone().step_by(ROWS) {
                    let (data, rows, walk) = self.rows_of(i, ks, (piece.start, strips));
                    let mut at = 0;
                    for cols in self.panels() {
                        let vectors = cols.len().div_ceil(VECTOR);
                        let panel = &packed[at..at + ks.len() * vectors * VECTOR];
                        at += panel.len();
                        let whole = self.whole(i, &cols, add);
                        tile::tile(data, &rows, &walk, (panel, vectors), whole, &mut tile);
                        if whole.is_none() {
                            self.store(i, cols, &tile, add);
                        }
                    }
                }
            }
        });
    }

    /// Like [`Block::depth`], for a right operand that is read in place, without packing.
    fn depth_direct(&self, ks: &Range<usize>, direct: &Direct<F>, add: bool) {
        let mut tile = [F::ZERO; ROWS * WIDTH];
        let offsets = &direct.offsets[ks.clone()];
        let furthest = offsets.iter().max().copied().unwrap_or_default();
        let (tiles, each) = (self.rows.len().div_ceil(ROWS), self.strip(ks.len()));
        with_thread_scratch(tiles * each, |strips| {
            for (piece, strips) in self.pieces().zip(strips.chunks_mut((SIDE_BY_SIDE * each).max(1))) {
                self.gather(piece, ks, strips);
            }
            let lefts =
                self.rows.clone().step_by(ROWS).map(|i| (i, self.rows_of(i, ks, (self.rows.start, strips))));
            let lefts: Vec<_> = lefts.collect();
            // The outer loop is over columns: a panel's part of the operand is small, and stays in the L1 cache for all rows.
            for cols in self.panels() {
                let (j, vectors) = (cols.start, cols.len().div_ceil(VECTOR));
                let bases: [usize; WIDTH / VECTOR] =
                    std::array::from_fn(|v| if v < vectors { (direct.columns)(j + v * VECTOR) } else { 0 });
                let inside =
                    bases[..vectors].iter().all(|base| base + furthest + VECTOR <= direct.data.len());
                assert!(inside, "a vector of columns {cols:?} lies in the right operand");
                for (i, (data, rows, walk)) in &lefts {
                    let (right, whole) =
                        ((direct.data, &bases[..vectors], offsets), self.whole(*i, &cols, add));
                    let to = whole.unwrap_or_else(|| Target::own(&mut tile));
                    #[cfg(target_arch = "x86_64")]
                    tile::direct((*data, rows, walk.steps[2]), right, to);
                    #[cfg(not(target_arch = "x86_64"))]
                    let _ = (to, data, rows, right, walk);
                    if whole.is_none() {
                        self.store(*i, cols.clone(), &tile, add);
                    }
                }
            }
        });
    }

    /// The target of a tile of rows from `i` on and of `cols`, if all its vectors are whole and each is contiguous in the output.
    fn whole(&self, i: usize, cols: &Range<usize>, add: bool) -> Option<Target<F>> {
        let plane = cols.start % self.place.plane + cols.len() <= self.place.plane;
        let fits = i + ROWS <= self.rows.end && cols.len().is_multiple_of(VECTOR) && plane;
        if !fits || !tile::targets::<F>() {
            return None;
        }
        let (at, line) = (self.place.at(cols.start) + i * self.place.row, self.place.row);
        assert!(at + (ROWS - 1) * line + cols.len() <= self.out.length, "a tile lies in the output");
        // Each task writes only the elements of its own rows and columns; see `Out`.
        Some(Target { start: self.out.start.wrapping_add(at), line, add })
    }

    /// Writes a tile, whose lines are `WIDTH` elements apart, to the output's rows from `i` on and to columns `cols`.
    fn store(&self, i: usize, cols: Range<usize>, tile: &[F; ROWS * WIDTH], add: bool) {
        let (rows, j, cols) = (ROWS.min(self.rows.end - i), cols.start, cols.len());
        let mut done = 0;
        while done < cols {
            let left = self.place.plane - (j + done) % self.place.plane;
            let length = left.min(cols - done);
            let at = self.place.at(j + done) + i * self.place.row;
            for (r, line) in tile.chunks_exact(WIDTH).take(rows).enumerate() {
                self.write(at + r * self.place.row, &line[done..done + length], add);
            }
            done += length;
        }
    }

    #[inline(always)]
    fn write(&self, at: usize, line: &[F], add: bool) {
        assert!(at + line.len() <= self.out.length, "a line of a tile lies in the output");
        // SAFETY: in bounds by the assert above; only this task has these rows and columns (see `Out`).
        #[allow(unsafe_code, reason = "threads write disjoint elements")]
        let to = unsafe { std::slice::from_raw_parts_mut(self.out.start.add(at), line.len()) };
        // A copy of a known number of vectors is a few instructions; a copy of any other length is a function call.
        match line.len() {
            WIDTH => put::<F, WIDTH>(to, line, add),
            32 => put::<F, 32>(to, line, add),
            16 => put::<F, 16>(to, line, add),
            _ if add => to.iter_mut().zip(line).for_each(|(to, &from)| *to += from),
            _ => to.copy_from_slice(line),
        }
    }
}

#[inline(always)]
fn put<F: Float, const N: usize>(to: &mut [F], from: &[F], add: bool) {
    let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk::<N>()) else { return };
    if add {
        (0..N).for_each(|i| to[i] += from[i]);
    } else {
        *to = *from;
    }
}

/// A cache line: scratch buffers begin at a cache line, so that no vector spans two.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// Calls `body` with a scratch buffer of `count` elements of undefined content. The thread retains the buffer for its next call. Nested
/// calls get different buffers.
pub(super) fn with_thread_scratch<F: Float, R>(count: usize, body: impl FnOnce(&mut [F]) -> R) -> R {
    let needed = (count * size_of::<F>()).div_ceil(size_of::<Line>());
    let mut lines = take_scratch(needed);
    let result = body(&mut bytemuck::cast_slice_mut(&mut lines[..needed])[..count]);
    keep_scratch(lines);
    result
}

thread_local! {
    static SCRATCH: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// A vector of at least `needed` lines, out of this thread's scratch memory.
fn take_scratch(needed: usize) -> Vec<Line> {
    let mut lines = SCRATCH.with(|buffers| buffers.borrow_mut().pop()).unwrap_or_default();
    if lines.len() < needed {
        lines.resize(needed, Line([0; 8]));
    }
    lines
}

fn keep_scratch(lines: Vec<Line>) {
    SCRATCH.with(|buffers| buffers.borrow_mut().push(lines));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_cover_every_k_once_and_cut_between_iterations() {
        for counts in
            [[1, 1, 784], [1, 1, 3], [32, 32, 32], [32, 4, 4], [3, 1, 1], [2, 5, 400], [1, 1, 0], [4, 1, 900]]
        {
            let walk = Walk { counts, steps: [100_000, 1000, 1] };
            let depths = walk.depths();
            let total: usize = counts.iter().product();
            assert_eq!(depths.iter().map(Range::len).sum::<usize>(), total, "{counts:?}");
            let mut next = 0;
            for ks in depths {
                assert!(ks.start == next && ks.len() <= DEPTH, "{counts:?}: {ks:?}");
                next = ks.end;
                let (start, cut) = walk.cut(&ks);
                for k in 0..ks.len() {
                    assert_eq!(start + cut.at(k), walk.at(ks.start + k), "{counts:?}: {ks:?} {k}");
                }
            }
        }
    }
}
