//! Tiles by AVX-512.
#![allow(unsafe_code, clippy::needless_range_loop, reason = "intrinsics over registers, which have numbers")]

use super::{ROWS, Target, VECTOR, WIDTH, Walk};
use std::arch::x86_64::*;

/// Computes a tile as [`super::tile`] does. It is compiled here; its generic forms would be compiled by each crate that multiplies.
///
/// # Safety
/// AVX-512F; every row's walk ends inside `data`; `panel` has as many lines of `vectors` vectors, 1 to 3, as the walk has steps; `ROWS`
/// lines of as many vectors at `to` can be written, and read if they are added to.
#[target_feature(enable = "avx512f")]
pub unsafe fn tile_f32(
    data: &[f32],
    rows: &[usize; ROWS],
    walk: &Walk,
    (panel, vectors): (&[f32], usize),
    to: Target<f32>,
) {
    // SAFETY: the caller meets the conditions of each of these.
    unsafe {
        match vectors {
            1 => tile::<1>(data, rows, walk, panel, to),
            2 => tile::<2>(data, rows, walk, panel, to),
            _ => tile::<3>(data, rows, walk, panel, to),
        }
    }
}

/// [`tile_f32`] of V vectors.
///
/// # Safety
/// The conditions of [`tile_f32`].
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
                    let right: [__m512; V] = std::array::from_fn(|v| _mm512_loadu_ps(line.add(v * VECTOR)));
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
    // An indexed loop: an iterator over the sums would keep them in memory.
    for r in 0..ROWS {
        for v in 0..V {
            // SAFETY: the caller meets this function's `# Safety` conditions.
            unsafe {
                let at = to.start.add(r * to.line + v * VECTOR);
                let sum = if to.add { _mm512_add_ps(_mm512_loadu_ps(at), sums[r][v]) } else { sums[r][v] };
                _mm512_storeu_ps(at, sum);
            }
        }
    }
}

/// Computes a tile of f64 as [`super::tile`] does: the panel's vectors of 16 in turn, each in two registers.
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
            // SAFETY: the assert above keeps the vector inside its line of `out`.
            unsafe {
                _mm512_storeu_pd(out.as_mut_ptr().add(at), sums[r][0]);
                _mm512_storeu_pd(out.as_mut_ptr().add(at + HALF), sums[r][1]);
            }
        }
    }
}

/// Computes a tile as [`super::direct`] does; compiled here, as [`tile_f32`] is.
///
/// # Safety
/// AVX-512F; every row's steps end inside `data`; a vector from each of the three bases or fewer plus each offset is inside `right`;
/// `ROWS` lines of as many vectors at `to` can be written, and read if they are added to.
#[target_feature(enable = "avx512f")]
pub unsafe fn direct_f32(
    (data, rows, step): (&[f32], &[usize; ROWS], usize),
    (right, bases, offsets): (&[f32], &[usize], &[usize]),
    to: Target<f32>,
) {
    // SAFETY: the caller meets the conditions of each of these.
    unsafe {
        match *bases {
            [a] => direct([a], data, rows, step, right, offsets, to),
            [a, b] => direct([a, b], data, rows, step, right, offsets, to),
            [a, b, c] => direct([a, b, c], data, rows, step, right, offsets, to),
            _ => unreachable!("a tile has one to three vectors"),
        }
    }
}

/// [`direct_f32`] of V vectors.
///
/// # Safety
/// The conditions of [`direct_f32`].
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
        // SAFETY: the caller meets this function's `# Safety` conditions.
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
    // An indexed loop: an iterator over the sums would keep them in memory.
    for r in 0..ROWS {
        for v in 0..V {
            // SAFETY: the caller meets this function's `# Safety` conditions.
            unsafe {
                let at = to.start.add(r * to.line + v * VECTOR);
                let sum = if to.add { _mm512_add_ps(_mm512_loadu_ps(at), sums[r][v]) } else { sums[r][v] };
                _mm512_storeu_ps(at, sum);
            }
        }
    }
}

/// Copies lines of `width` elements, a multiple of 16, from lines `step` elements apart to lines `apart` elements apart.
///
/// # Safety
/// AVX-512F; all lines can be read at `from` and written at `to`.
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
            // SAFETY: the caller meets this function's `# Safety` conditions.
            unsafe { _mm512_storeu_ps(to.add(line * apart + j), _mm512_loadu_ps(from.add(line * step + j))) };
        }
    }
}

/// Transposes 16 x 16 elements, from lines `from` elements apart to lines `to` elements apart. Four lines of four elements each are
/// loaded into the quarters of a vector, so that only the blocks of 4 x 4 within quarters are left to transpose.
///
/// # Safety
/// AVX-512F; 16 lines of 16 elements can be read at `source` and written at `target`.
#[target_feature(enable = "avx512f")]
pub unsafe fn transpose(source: *const f32, from: usize, target: *mut f32, to: usize) {
    for column in (0..16).step_by(4) {
        // SAFETY: the caller meets this function's `# Safety` conditions.
        unsafe {
            let four = |line: usize| _mm_loadu_ps(source.add(line * from + column));
            // Quarter q of vector r holds a part of line 4 q + r.
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
