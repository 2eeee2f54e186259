//! Tiles by AVX2 with fused multiply-add: four rows of up to three registers at a time, which fill the sixteen registers.
//!
//! ```text
//! block[4 x 3 registers] = sum over k of left[4 rows, k] . right[k, 3 registers]      12 sums, 3 loads, 4 broadcasts per k
//! ```
#![allow(unsafe_code, clippy::needless_range_loop, reason = "intrinsics over registers, which have numbers")]

use super::{ROWS, Target, VECTOR, Walk};
use std::arch::x86_64::*;

/// The number of rows of a block.
const HIGH: usize = 4;
/// The number of f32 elements of a register.
const LANES: usize = 8;

/// The number of registers of the next block, with `left` registers to the end of a line: two and two are faster than three and
/// one.
fn registers(left: usize) -> usize {
    if left == 4 { 2 } else { left.min(3) }
}

macro_rules! kernels {
    ($module:ident, $float:ty, $register:ty, $zero:ident, $load:ident, $store:ident, $set:ident, $fma:ident, $add:ident) => {
        pub mod $module {
            use super::{HIGH, ROWS, Target, VECTOR, Walk, registers};
            use std::arch::{asm, x86_64::*};

            const LANES: usize = 32 / size_of::<$float>();

            /// The sums of four rows, `V` registers each.
            pub type Sums<const V: usize> = [[$register; V]; HIGH];

            /// Computes a tile as [`super::super::tile`] does.
            ///
            /// # Safety
            /// AVX2 and FMA; every row's walk ends inside `data`; `panel` has as many lines of `vectors` vectors as the walk has
            /// steps; `ROWS` such lines at `to` can be written, and read if they are added to.
            #[target_feature(enable = "avx2,fma")]
            pub unsafe fn tile(
                data: &[$float],
                rows: &[usize; ROWS],
                walk: &Walk,
                (panel, vectors): (&[$float], usize),
                to: Target<$float>,
            ) {
                let width = vectors * VECTOR;
                let mut column = 0;
                while column < width {
                    let count = registers((width - column) / LANES);
                    let line = panel.as_ptr().wrapping_add(column);
                    for first in (0..ROWS).step_by(HIGH) {
                        let starts = std::array::from_fn(|r| data.as_ptr().wrapping_add(rows[first + r]));
                        let to = to.at(first, column);
                        // SAFETY: the caller meets the conditions of `tile`, which hold for these rows and columns too.
                        unsafe {
                            match count {
                                1 => block::<1>(starts, walk, (line, width), to),
                                2 => block::<2>(starts, walk, (line, width), to),
                                _ => block::<3>(starts, walk, (line, width), to),
                            }
                        }
                    }
                    column += count * LANES;
                }
            }

            /// Computes some columns of four rows; the right operand's lines are `width` elements apart.
            ///
            /// # Safety
            /// The conditions of [`tile`].
            #[target_feature(enable = "avx2,fma")]
            unsafe fn block<const V: usize>(
                starts: [*const $float; HIGH],
                walk: &Walk,
                (mut line, width): (*const $float, usize),
                to: Target<$float>,
            ) {
                let mut sums = [[$zero(); V]; HIGH];
                let [a_count, b_count, c_count] = walk.counts;
                let [a_step, b_step, c_step] = walk.steps;
                for a in 0..a_count {
                    for b in 0..b_count {
                        let mut at = a * a_step + b * b_step;
                        for _ in 0..c_count {
                            // SAFETY: `line` moves one line per step of the walk, and `at` is inside every row's walk.
                            unsafe {
                                let right = std::array::from_fn(|v| $load(line.add(v * LANES)));
                                step(&mut sums, &starts, at, right);
                            }
                            line = line.wrapping_add(width);
                            at += c_step;
                        }
                    }
                }
                // SAFETY: the caller meets this function's `# Safety` conditions.
                unsafe { put(&sums, to) };
            }

            /// Adds the products of one step to `sums`: each row's element `at` times all of `right`.
            ///
            /// # Safety
            /// AVX2 and FMA; `at` lies in every row.
            #[inline]
            #[target_feature(enable = "avx2,fma")]
            pub unsafe fn step<const V: usize>(
                sums: &mut Sums<V>,
                starts: &[*const $float; HIGH],
                mut at: usize,
                right: [$register; V],
            ) {
                for r in 0..HIGH {
                    // SAFETY: the caller meets this function's `# Safety` conditions.
                    let left = unsafe { $set(*starts[r].add(at)) };
                    for v in 0..V {
                        sums[r][v] = $fma(left, right[v], sums[r][v]);
                        if V == 3 {
                            then(&mut sums[r][v], &mut at);
                        }
                    }
                }
            }

            /// Emits no instruction, but orders uses of `at` after the computation of `sum`: a compiler that broadcasts one row's
            /// element while it still needs another's runs out of its sixteen registers and keeps sums in memory.
            #[inline]
            #[target_feature(enable = "avx2,fma")]
            fn then(sum: &mut $register, at: &mut usize) {
                // SAFETY: the assembly is only a comment.
                unsafe {
                    asm!(
                        "/* {0} {1} */",
                        inout(ymm_reg) * sum,
                        inout(reg) * at,
                        options(pure, nomem, nostack, preserves_flags)
                    );
                }
            }

            /// Writes the sums of four rows to `to`, or adds them to its content.
            ///
            /// # Safety
            /// AVX; four lines of `V` registers at `to` can be written, and read if they are added to.
            #[inline]
            #[target_feature(enable = "avx2,fma")]
            pub unsafe fn put<const V: usize>(sums: &Sums<V>, to: Target<$float>) {
                // An indexed loop: an iterator over the sums would keep them in memory.
                for r in 0..HIGH {
                    for v in 0..V {
                        // SAFETY: the caller meets this function's `# Safety` conditions.
                        unsafe {
                            let at = to.start.add(r * to.line + v * LANES);
                            $store(at, if to.add { $add($load(at), sums[r][v]) } else { sums[r][v] });
                        }
                    }
                }
            }
        }
    };
}

kernels!(
    f32,
    f32,
    __m256,
    _mm256_setzero_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_set1_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps
);
kernels!(
    f64,
    f64,
    __m256d,
    _mm256_setzero_pd,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_set1_pd,
    _mm256_fmadd_pd,
    _mm256_add_pd
);

/// Computes a tile as [`super::direct`] does.
///
/// # Safety
/// AVX2 and FMA; every row's steps end inside `data`; a vector from each base plus each offset is inside `right`; `ROWS` lines of
/// as many vectors at `to` can be written, and read if they are added to.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn direct(
    (data, rows, step): (&[f32], &[usize; ROWS], usize),
    (right, bases, offsets): (&[f32], &[usize], &[usize]),
    to: Target<f32>,
) {
    const EACH: usize = VECTOR / LANES;
    let mut done = 0;
    while done < bases.len() * EACH {
        let count = registers(bases.len() * EACH - done);
        let base =
            |v: usize| right.as_ptr().wrapping_add(bases[(done + v) / EACH] + (done + v) % EACH * LANES);
        for first in (0..ROWS).step_by(HIGH) {
            let starts = std::array::from_fn(|r| data.as_ptr().wrapping_add(rows[first + r]));
            let to = to.at(first, done * LANES);
            // SAFETY: the caller meets the conditions of `direct`, which hold for these rows and columns too.
            unsafe {
                match count {
                    1 => direct_block([base(0)], starts, step, offsets, to),
                    2 => direct_block([base(0), base(1)], starts, step, offsets, to),
                    _ => direct_block([base(0), base(1), base(2)], starts, step, offsets, to),
                }
            }
        }
        done += count;
    }
}

/// Computes some columns of four rows, of a right operand that is read in place.
///
/// # Safety
/// The conditions of [`direct`].
#[target_feature(enable = "avx2,fma")]
unsafe fn direct_block<const V: usize>(
    bases: [*const f32; V],
    starts: [*const f32; HIGH],
    step: usize,
    offsets: &[usize],
    to: Target<f32>,
) {
    let mut sums = [[_mm256_setzero_ps(); V]; HIGH];
    let mut at = 0;
    for &offset in offsets {
        // SAFETY: the caller meets this function's `# Safety` conditions.
        unsafe {
            let right = std::array::from_fn(|v| _mm256_loadu_ps(bases[v].add(offset)));
            f32::step(&mut sums, &starts, at, right);
        }
        at += step;
    }
    // SAFETY: the caller meets this function's `# Safety` conditions.
    unsafe { f32::put(&sums, to) };
}

/// Copies lines of `width` elements, a multiple of 16, from lines `step` elements apart to lines `apart` elements apart.
///
/// # Safety
/// AVX; all lines can be read at `from` and written at `to`.
#[target_feature(enable = "avx")]
pub unsafe fn copy_lines(
    from: *const f32,
    step: usize,
    (lines, width): (usize, usize),
    to: *mut f32,
    apart: usize,
) {
    for line in 0..lines {
        for j in (0..width).step_by(LANES) {
            // SAFETY: the caller meets this function's `# Safety` conditions.
            unsafe {
                _mm256_storeu_ps(to.add(line * apart + j), _mm256_loadu_ps(from.add(line * step + j)));
            }
        }
    }
}

/// Copies lines of `8 T` elements, `step` elements apart, to T strips, `each` elements apart, with eight elements per line.
///
/// # Safety
/// AVX; all lines can be read, and all strips can be written.
#[target_feature(enable = "avx")]
pub unsafe fn strips<const T: usize>(from: *const f32, step: usize, lines: usize, to: *mut f32, each: usize) {
    for line in 0..lines {
        for t in 0..T {
            // SAFETY: the caller meets this function's `# Safety` conditions.
            unsafe {
                let eight = _mm256_loadu_ps(from.add(line * step + t * ROWS));
                _mm256_storeu_ps(to.add(t * each + line * ROWS), eight);
            }
        }
    }
}

/// Transposes 16 x 16 elements, from lines `from` elements apart to lines `to` elements apart. Two lines of four elements each are
/// loaded into the halves of a register, so that only the blocks of 4 x 4 within halves are left to transpose.
///
/// # Safety
/// AVX; 16 lines of 16 elements can be read at `source` and written at `target`.
#[target_feature(enable = "avx")]
pub unsafe fn transpose(source: *const f32, from: usize, target: *mut f32, to: usize) {
    for (first, column) in
        [0, LANES].into_iter().flat_map(|first| [0, 4, 8, 12].map(|column| (first, column)))
    {
        // SAFETY: the caller meets this function's `# Safety` conditions.
        unsafe {
            let four = |line: usize| _mm_loadu_ps(source.add((first + line) * from + column));
            // Half h of register r holds a part of line 4 h + r.
            let r: [__m256; 4] = std::array::from_fn(|r| {
                _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(four(r)), four(r + 4))
            });
            let low = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1]));
            let high = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
            let low_after = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3]));
            let high_after = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
            let lines = [
                _mm256_unpacklo_pd(low, low_after),
                _mm256_unpackhi_pd(low, low_after),
                _mm256_unpacklo_pd(high, high_after),
                _mm256_unpackhi_pd(high, high_after),
            ];
            for (line, values) in (column..).zip(lines) {
                _mm256_storeu_ps(target.add(line * to + first), _mm256_castpd_ps(values));
            }
        }
    }
}
