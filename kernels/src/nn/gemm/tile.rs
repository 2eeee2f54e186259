//! One tile of a product, held in registers: 8 rows of up to three vectors of 16.
//!
//! ```text
//! tile[8 x 48] = sum over k of left[8 rows, k] . panel[k, 48]         24 accumulators, 3 loads, 8 broadcasts per k
//! ```

use super::Walk;
use crate::Isa;
use crate::nn::Float;

#[cfg(target_arch = "x86_64")]
pub(super) mod middle;
#[cfg(target_arch = "x86_64")]
pub(super) mod wide;

/// The number of rows of a tile.
pub(super) const ROWS: usize = 8;
/// The number of columns that are computed together.
pub(super) const VECTOR: usize = 16;
/// The number of columns of a tile.
pub(super) const WIDTH: usize = 3 * VECTOR;

/// The target of a tile's vectors: `line` elements from one line to the next; with `add`, the vectors are added to the content.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "vectors of other processors go through slices")
)]
pub(super) struct Target<F> {
    pub start: *mut F,
    pub line: usize,
    pub add: bool,
}

impl<F> Target<F> {
    /// A target in a tile's own memory, whose lines are `WIDTH` elements apart.
    pub fn own(tile: &mut [F; ROWS * WIDTH]) -> Target<F> {
        Target { start: tile.as_mut_ptr(), line: WIDTH, add: false }
    }

    /// The target from this row and column of the tile on.
    #[cfg(target_arch = "x86_64")]
    fn at(self, row: usize, column: usize) -> Target<F> {
        Target { start: self.start.wrapping_add(row * self.line + column), ..self }
    }

    #[cfg(target_arch = "x86_64")]
    fn cast<T>(self) -> Target<T> {
        Target { start: self.start.cast(), line: self.line, add: self.add }
    }
}

/// Whether [`Target`]s are supported for this element type on this processor.
pub(super) fn targets<F: Float>() -> bool {
    cfg!(target_arch = "x86_64") && Isa::best() != Isa::Baseline && size_of::<F>() == size_of::<f32>()
}

/// Writes the product of `panel`, whose lines are `vectors` vectors long, and the rows of `data` that start at `rows` and continue along
/// `walk`. The product is written to `to`, or if that is `None` to `out` (lines `WIDTH` apart). The caller has checked that every row's
/// walk ends inside `data` and that `to`, which is only for types that have [`targets`], can be written.
pub(super) fn tile<F: Float>(
    data: &[F],
    rows: &[usize; ROWS],
    walk: &Walk,
    (panel, vectors): (&[F], usize),
    to: Option<Target<F>>,
    out: &mut [F; ROWS * WIDTH],
) {
    let depth: usize = walk.counts.iter().product();
    assert!(panel.len() == depth * vectors * VECTOR && (1..=3).contains(&vectors));
    #[cfg(target_arch = "x86_64")]
    {
        use bytemuck::cast_slice as cast;
        const SINGLE: usize = size_of::<f32>();
        let to = to.unwrap_or_else(|| Target::own(out));
        // SAFETY: the instructions were detected; the element's size distinguishes f32 from f64; the panel's length is asserted above;
        // `gemm` asserts that the furthest row's walk ends inside `data`; the caller guarantees `to`, and `out` has `ROWS` lines of
        // `WIDTH` elements.
        #[allow(unsafe_code, reason = "intrinsics")]
        unsafe {
            match (Isa::best(), size_of::<F>()) {
                (Isa::Avx512, SINGLE) => {
                    return wide::tile_f32(cast(data), rows, walk, (cast(panel), vectors), to.cast());
                }
                (Isa::Avx512, _) => {
                    let out = bytemuck::cast_slice_mut(out);
                    return wide::tile_f64(cast(data), rows, walk, cast(panel), vectors, out);
                }
                (Isa::Avx2, SINGLE) => {
                    return middle::f32::tile(cast(data), rows, walk, (cast(panel), vectors), to.cast());
                }
                (Isa::Avx2, _) => {
                    return middle::f64::tile(cast(data), rows, walk, (cast(panel), vectors), to.cast());
                }
                (Isa::Baseline, _) => {}
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = to;
    plain(data, rows, walk, panel, vectors, out);
}

/// Like [`tile`], for a right operand that is read in place; only for types that have [`targets`]. Each row of the left operand begins at
/// `rows` and continues in steps of `step`. The caller has checked that a vector from each of `bases` plus the largest of `offsets` is
/// inside the right operand, and that `to` can be written.
#[cfg(target_arch = "x86_64")]
pub(super) fn direct<F: Float>(
    (data, rows, step): (&[F], &[usize; ROWS], usize),
    (right, bases, offsets): (&[F], &[usize], &[usize]),
    to: Target<F>,
) {
    assert!(targets::<F>());
    let (data, right, to) = (bytemuck::cast_slice(data), bytemuck::cast_slice(right), to.cast());
    // SAFETY: the instructions were detected and F is f32; `depth_direct` asserts that every vector is inside `right`, and
    // guarantees `to`; `gemm` asserts that the furthest row's walk ends inside `data`.
    #[allow(unsafe_code, reason = "intrinsics")]
    unsafe {
        match Isa::best() {
            Isa::Avx512 => wide::direct_f32((data, rows, step), (right, bases, offsets), to),
            _ => middle::direct((data, rows, step), (right, bases, offsets), to),
        }
    }
}

/// The tile on any processor: four rows of one vector at a time, which the compiler vectorises for its target.
fn plain<F: Float>(
    data: &[F],
    rows: &[usize; ROWS],
    walk: &Walk,
    panel: &[F],
    vectors: usize,
    out: &mut [F; ROWS * WIDTH],
) {
    let ([a_count, b_count, c_count], [a_step, b_step, c_step]) = (walk.counts, walk.steps);
    for (vector, half) in (0..vectors).flat_map(|vector| [(vector, 0), (vector, ROWS / 2)]) {
        let mut sums = [[F::ZERO; VECTOR]; ROWS / 2];
        let mut lines = panel.chunks_exact(VECTOR).skip(vector).step_by(vectors);
        for (a, b) in (0..a_count).flat_map(|a| (0..b_count).map(move |b| (a, b))) {
            for (c, line) in (0..c_count).zip(&mut lines) {
                let at = a * a_step + b * b_step + c * c_step;
                for (sums, row) in sums.iter_mut().zip(&rows[half..]) {
                    let left = data[row + at];
                    sums.iter_mut().zip(line).for_each(|(sum, &right)| *sum = left * right + *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            let at = (half + r) * WIDTH + vector * VECTOR;
            out[at..at + VECTOR].copy_from_slice(sums);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
