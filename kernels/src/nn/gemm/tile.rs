//! One tile of a product, held in registers: 8 rows of up to three vectors of 16.
//!
//! ```text
//! tile[8 x 48] = sum over k of left[8 rows, k] . panel[k, 48]         24 accumulators, 3 loads, 8 broadcasts per k
//! ```

use super::Walk;
use crate::nn::Float;
use crate::nn::simd::{Level, level};

/// Rows of a tile.
pub(super) const ROWS: usize = 8;
/// Columns that are computed together.
pub(super) const VECTOR: usize = 16;
/// Columns of a tile.
pub(super) const WIDTH: usize = 3 * VECTOR;

/// Where the vectors of a tile go: lines of them, `line` elements apart, and whether they are added to what is there.
#[derive(Clone, Copy)]
pub(super) struct Target<F> {
    pub start: *mut F,
    pub line: usize,
    pub add: bool,
}

impl<F> Target<F> {
    /// A tile's own memory, whose lines are `WIDTH` apart.
    pub fn own(tile: &mut [F; ROWS * WIDTH]) -> Target<F> {
        Target { start: tile.as_mut_ptr(), line: WIDTH, add: false }
    }
}

/// Whether tiles of this type are written as [`Target`]s say.
pub(super) fn targets<F: Float>() -> bool {
    cfg!(target_arch = "x86_64") && level() == Level::Wide && size_of::<F>() == size_of::<f32>()
}

/// To `to`, or if that is `None` to `out` (lines `WIDTH` apart): the rows of `data` that start at `rows`, along `walk`, times
/// `panel`, whose lines are `vectors` vectors long. `data` reaches as far as every row's walk does: the caller has checked it,
/// and that `to`, which is only for types that have [`targets`], can be written there.
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
    if targets::<F>()
        && let (Ok(data), Ok(panel)) = (bytemuck::try_cast_slice(data), bytemuck::try_cast_slice(panel))
    {
        let Target { start, line, add } = to.unwrap_or_else(|| Target::own(out));
        let to = Target { start: start.cast::<f32>(), line, add };
        // SAFETY: AVX-512F was detected and F is f32; the panel's length is asserted above; `gemm` asserts that the furthest
        // row's walk ends inside `data`; the caller vouches for `to`, and `out` has `ROWS` lines of `WIDTH` elements.
        #[allow(unsafe_code, reason = "intrinsics")]
        unsafe {
            match vectors {
                1 => wide::tile::<1>(data, rows, walk, panel, to),
                2 => wide::tile::<2>(data, rows, walk, panel, to),
                _ => wide::tile::<3>(data, rows, walk, panel, to),
            }
        }
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if level() == Level::Wide
        && let (Ok(data), Ok(panel)) = (bytemuck::try_cast_slice(data), bytemuck::try_cast_slice(panel))
        && size_of::<F>() == size_of::<f64>()
        && let Ok(out) = bytemuck::try_cast_slice_mut::<F, f64>(out)
    {
        // SAFETY: AVX-512F was detected; the panel's length is asserted above; `gemm` asserts that the furthest row's
        // walk ends inside `data`; `out` has `ROWS * WIDTH` elements.
        #[allow(unsafe_code, reason = "intrinsics")]
        unsafe {
            wide::tile_f64(data, rows, walk, panel, vectors, out);
        }
        return;
    }
    any(data, rows, walk, panel, vectors, out);
}

/// As [`tile`], of a right operand that is read where it lies; only for types that have [`targets`]. Each row of the left
/// operand begins at `rows` and goes on in steps of `step`. The caller has checked that a vector from each of `bases` plus
/// the largest of `offsets` lies in the right operand, and that `to` can be written.
#[cfg(target_arch = "x86_64")]
pub(super) fn direct<F: Float>(
    (data, rows, step): (&[F], &[usize; ROWS], usize),
    (right, bases, offsets): (&[F], &[usize], &[usize]),
    to: Target<F>,
) {
    let (Ok(data), Ok(right)) = (bytemuck::try_cast_slice(data), bytemuck::try_cast_slice::<F, f32>(right))
    else {
        return;
    };
    assert!(targets::<F>());
    let to = Target { start: to.start.cast::<f32>(), line: to.line, add: to.add };
    // SAFETY: AVX-512F was detected and F is f32; `depth_direct` asserts that every vector lies inside `right`, and vouches
    // for `to`; `gemm` asserts that the furthest row's walk ends inside `data`.
    #[allow(unsafe_code, reason = "intrinsics")]
    unsafe {
        match *bases {
            [a] => wide::direct([a], data, rows, step, right, offsets, to),
            [a, b] => wide::direct([a, b], data, rows, step, right, offsets, to),
            [a, b, c] => wide::direct([a, b, c], data, rows, step, right, offsets, to),
            _ => {}
        }
    }
}

/// Any type and instruction set: four rows of one vector at a time, for the compiler to vectorise.
fn any<F: Float>(
    data: &[F],
    rows: &[usize; ROWS],
    walk: &Walk,
    panel: &[F],
    vectors: usize,
    out: &mut [F; ROWS * WIDTH],
) {
    for vector in 0..vectors {
        for half in 0..2 {
            let some = std::array::from_fn(|r| rows[half * 4 + r]);
            let mut sums = [[F::ZERO; VECTOR]; 4];
            if level() == Level::Plain {
                plain(data, some, walk, &panel[vector * VECTOR..], vectors, &mut sums);
            } else {
                fused(data, some, walk, &panel[vector * VECTOR..], vectors, &mut sums);
            }
            for (r, sums) in sums.iter().enumerate() {
                let at = (half * 4 + r) * WIDTH + vector * VECTOR;
                out[at..at + VECTOR].copy_from_slice(sums);
            }
        }
    }
}

/// Adds `$multiply(left, right, sum)` along a walk to four rows of one vector. Written out, with loops that call nothing:
/// a closure's or an iterator's body need not be compiled for the instruction set of whoever calls it.
macro_rules! rows {
    ($data:ident, $rows:ident, $walk:ident, $panel:ident, $vectors:ident, $sums:ident, $multiply:expr) => {{
        let mut held = *$sums;
        let ([a_count, b_count, c_count], [a_step, b_step, c_step]) = ($walk.counts, $walk.steps);
        let (mut a, mut line) = (0, 0);
        while a < a_count {
            let mut b = 0;
            while b < b_count {
                let (mut at, mut c) = (a * a_step + b * b_step, 0);
                while c < c_count {
                    let right = &$panel[line..line + VECTOR];
                    let mut r = 0;
                    while r < 4 {
                        let left = $data[$rows[r] + at];
                        let mut i = 0;
                        while i < VECTOR {
                            held[r][i] = $multiply(left, right[i], held[r][i]);
                            i += 1;
                        }
                        r += 1;
                    }
                    line += $vectors * VECTOR;
                    at += c_step;
                    c += 1;
                }
                b += 1;
            }
            a += 1;
        }
        *$sums = held;
    }};
}

crate::nn::simd::vectorised! {
    fn fused<F>(data: &[F], rows: [usize; 4], walk: &Walk, panel: &[F], vectors: usize, sums: &mut [[F; VECTOR]; 4]) {
        rows!(data, rows, walk, panel, vectors, sums, F::mul_add)
    }
}

fn plain<F: Float>(
    data: &[F],
    rows: [usize; 4],
    walk: &Walk,
    panel: &[F],
    vectors: usize,
    sums: &mut [[F; VECTOR]; 4],
) {
    rows!(data, rows, walk, panel, vectors, sums, |left: F, right, sum| left * right + sum);
}

#[cfg(target_arch = "x86_64")]
pub(super) mod wide {
    //! AVX-512.
    #![allow(
        unsafe_code,
        clippy::needless_range_loop,
        reason = "intrinsics over registers, which have numbers"
    )]

    use super::{ROWS, Target, VECTOR, WIDTH, Walk};
    use std::arch::x86_64::*;

    /// See [`super::tile`].
    ///
    /// # Safety
    /// AVX-512F; every row's walk ends inside `data`; `panel` has as many lines of `V` vectors as the walk has steps; `ROWS`
    /// lines of `V` vectors can be written to `to`, and read where they are added.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn tile<const V: usize>(
        data: &[f32],
        rows: &[usize; ROWS],
        walk: &Walk,
        panel: &[f32],
        to: Target<f32>,
    ) {
        let mut sums = [[_mm512_setzero_ps(); V]; ROWS];
        let starts = rows.map(|row| data.as_ptr().wrapping_add(row));
        let mut line = panel.as_ptr();
        let [a_count, b_count, c_count] = walk.counts;
        let [a_step, b_step, c_step] = walk.steps;
        for a in 0..a_count {
            for b in 0..b_count {
                let mut at = a * a_step + b * b_step;
                for _ in 0..c_count {
                    // SAFETY: `line` moves one line per step of the walk, and `at` is inside every row's walk.
                    unsafe {
                        let right: [__m512; V] =
                            std::array::from_fn(|v| _mm512_loadu_ps(line.add(v * VECTOR)));
                        for r in 0..ROWS {
                            let left = _mm512_set1_ps(*starts[r].add(at));
                            for v in 0..V {
                                sums[r][v] = _mm512_fmadd_ps(left, right[v], sums[r][v]);
                            }
                        }
                    }
                    line = line.wrapping_add(V * VECTOR);
                    at += c_step;
                }
            }
        }
        // By number: an iterator over the sums would keep them in memory all along.
        for r in 0..ROWS {
            for v in 0..V {
                // SAFETY: the caller's promise.
                unsafe {
                    let at = to.start.add(r * to.line + v * VECTOR);
                    let sum =
                        if to.add { _mm512_add_ps(_mm512_loadu_ps(at), sums[r][v]) } else { sums[r][v] };
                    _mm512_storeu_ps(at, sum);
                }
            }
        }
    }

    /// See [`super::tile`]: one vector of the panel, which is two of f64, after another.
    ///
    /// # Safety
    /// AVX-512F; every row's walk ends inside `data`; `panel` has as many lines of `vectors` vectors as the walk has steps.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn tile_f64(
        data: &[f64],
        rows: &[usize; ROWS],
        walk: &Walk,
        panel: &[f64],
        vectors: usize,
        out: &mut [f64],
    ) {
        const HALF: usize = VECTOR / 2;
        assert!(out.len() >= ROWS * WIDTH && vectors * VECTOR <= WIDTH);
        let starts = rows.map(|row| data.as_ptr().wrapping_add(row));
        let [a_count, b_count, c_count] = walk.counts;
        let [a_step, b_step, c_step] = walk.steps;
        for vector in 0..vectors {
            let mut sums = [[_mm512_setzero_pd(); 2]; ROWS];
            let mut line = panel.as_ptr().wrapping_add(vector * VECTOR);
            for a in 0..a_count {
                for b in 0..b_count {
                    let mut at = a * a_step + b * b_step;
                    for _ in 0..c_count {
                        // SAFETY: `line` moves one line per step of the walk, and `at` is inside every row's walk.
                        unsafe {
                            let right = [_mm512_loadu_pd(line), _mm512_loadu_pd(line.add(HALF))];
                            for r in 0..ROWS {
                                let left = _mm512_set1_pd(*starts[r].add(at));
                                sums[r][0] = _mm512_fmadd_pd(left, right[0], sums[r][0]);
                                sums[r][1] = _mm512_fmadd_pd(left, right[1], sums[r][1]);
                            }
                        }
                        line = line.wrapping_add(vectors * VECTOR);
                        at += c_step;
                    }
                }
            }
            for r in 0..ROWS {
                let at = r * WIDTH + vector * VECTOR;
                // SAFETY: the assert above holds the vector inside its line of `out`.
                unsafe {
                    _mm512_storeu_pd(out.as_mut_ptr().add(at), sums[r][0]);
                    _mm512_storeu_pd(out.as_mut_ptr().add(at + HALF), sums[r][1]);
                }
            }
        }
    }

    /// See [`super::direct`].
    ///
    /// # Safety
    /// AVX-512F; every row's steps end inside `data`; a vector from each base plus each offset lies inside `right`; `ROWS` lines
    /// of `V` vectors can be written to `to`, and read where they are added.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn direct<const V: usize>(
        bases: [usize; V],
        data: &[f32],
        rows: &[usize; ROWS],
        step: usize,
        right: &[f32],
        offsets: &[usize],
        to: Target<f32>,
    ) {
        let mut sums = [[_mm512_setzero_ps(); V]; ROWS];
        let starts = rows.map(|row| data.as_ptr().wrapping_add(row));
        let bases = bases.map(|base| right.as_ptr().wrapping_add(base));
        let mut at = 0;
        for &offset in offsets {
            // SAFETY: the caller's promise.
            unsafe {
                let right: [__m512; V] = std::array::from_fn(|v| _mm512_loadu_ps(bases[v].add(offset)));
                for r in 0..ROWS {
                    let left = _mm512_set1_ps(*starts[r].add(at));
                    for v in 0..V {
                        sums[r][v] = _mm512_fmadd_ps(left, right[v], sums[r][v]);
                    }
                }
            }
            at += step;
        }
        // By number: an iterator over the sums would keep them in memory all along.
        for r in 0..ROWS {
            for v in 0..V {
                // SAFETY: the caller's promise.
                unsafe {
                    let at = to.start.add(r * to.line + v * VECTOR);
                    let sum =
                        if to.add { _mm512_add_ps(_mm512_loadu_ps(at), sums[r][v]) } else { sums[r][v] };
                    _mm512_storeu_ps(at, sum);
                }
            }
        }
    }

    /// Copies lines of `width` elements, a multiple of 16, that are `step` apart, to where they are `apart`.
    ///
    /// # Safety
    /// AVX-512F; all lines can be read and written there.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn copy_lines(
        from: *const f32,
        step: usize,
        (lines, width): (usize, usize),
        to: *mut f32,
        apart: usize,
    ) {
        for line in 0..lines {
            for j in (0..width).step_by(VECTOR) {
                // SAFETY: the caller's promise.
                unsafe {
                    _mm512_storeu_ps(to.add(line * apart + j), _mm512_loadu_ps(from.add(line * step + j)))
                };
            }
        }
    }

    /// Copies lines of `8 T` elements that are `step` apart to T strips, `each` elements apart, of eight elements a line.
    ///
    /// # Safety
    /// AVX-512F; all lines can be read there, and all strips written.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn strips<const T: usize>(
        from: *const f32,
        step: usize,
        lines: usize,
        to: *mut f32,
        each: usize,
    ) {
        for line in 0..lines {
            for t in 0..T {
                // SAFETY: the caller's promise.
                unsafe {
                    let eight = _mm256_loadu_ps(from.add(line * step + t * ROWS));
                    _mm256_storeu_ps(to.add(t * each + line * ROWS), eight);
                }
            }
        }
    }

    /// The transpose of 16 x 16 elements: lines `from` apart to lines `to` apart. Four lines of four elements each are loaded
    /// into the quarters of a vector, so that only the blocks of 4 x 4 within quarters are left to transpose.
    ///
    /// # Safety
    /// AVX-512F; 16 lines of 16 elements can be read and written there.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn transpose(source: *const f32, from: usize, target: *mut f32, to: usize) {
        for column in (0..16).step_by(4) {
            // SAFETY: the caller's promise.
            unsafe {
                let four = |line: usize| _mm_loadu_ps(source.add(line * from + column));
                // Quarter q of vector r: line 4 q + r.
                let r: [__m512; 4] = std::array::from_fn(|r| {
                    let first = _mm512_castps128_ps512(four(r));
                    let two = _mm512_insertf32x4::<1>(first, four(r + 4));
                    let three = _mm512_insertf32x4::<2>(two, four(r + 8));
                    _mm512_insertf32x4::<3>(three, four(r + 12))
                });
                let low = _mm512_castps_pd(_mm512_unpacklo_ps(r[0], r[1]));
                let high = _mm512_castps_pd(_mm512_unpackhi_ps(r[0], r[1]));
                let low_after = _mm512_castps_pd(_mm512_unpacklo_ps(r[2], r[3]));
                let high_after = _mm512_castps_pd(_mm512_unpackhi_ps(r[2], r[3]));
                let lines = [
                    _mm512_unpacklo_pd(low, low_after),
                    _mm512_unpackhi_pd(low, low_after),
                    _mm512_unpacklo_pd(high, high_after),
                    _mm512_unpackhi_pd(high, high_after),
                ];
                for (line, values) in (column..).zip(lines) {
                    _mm512_storeu_ps(target.add(line * to), _mm512_castpd_ps(values));
                }
            }
        }
    }
}
