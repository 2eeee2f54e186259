//! The right operand of a product, copied into panels: a line for each k, a few columns wide and padded to whole vectors.

use super::SIDE_BY_SIDE;
use super::tile::{self, ROWS, VECTOR};
#[cfg(target_arch = "x86_64")]
use crate::Isa;
use crate::nn::Float;
use crate::nn::simd::compiled_here;
use std::ops::Range;

/// A right operand of k x n elements.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a, F> {
    Lines(Lines<'a, F>),
    Patches(Patches<'a, F>),
}

impl<F: Float> Right<'_, F> {
    /// Fills `panel` with lines `ks` of columns `cols`; the padding up to a whole vector may hold any finite values.
    pub(super) fn pack(&self, ks: Range<usize>, cols: Range<usize>, panel: &mut [F]) {
        match self {
            Right::Lines(lines) => lines.pack(ks, cols, panel),
            Right::Patches(patches) => patches.pack(ks, cols, panel),
        }
    }

    /// The description for reading the operand in place, in an m x n product of this depth. `None` if vectors of columns are not
    /// contiguous for every k, or if packing is faster.
    pub(super) fn direct(&self, m: usize, n: usize, depth: usize) -> Option<Direct<'_, F>> {
        match self {
            Right::Lines(lines) => lines.direct(m, n, depth),
            Right::Patches(patches) => patches.direct(depth),
        }
    }
}

/// A right operand that is read in place: element (k, j) is at `columns(j) + offsets[k]`, followed by the elements of the next columns,
/// up to a whole vector.
pub(crate) struct Direct<'a, F> {
    pub data: &'a [F],
    pub offsets: Vec<usize>,
    pub columns: Box<dyn Fn(usize) -> usize + Sync + 'a>,
}

/// An operand in memory: element (k, j) is at `k / plane * sample + k % plane * k_step + j * j_step`; one of the two steps is 1.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a, F> {
    pub data: &'a [F],
    pub k_step: usize,
    pub j_step: usize,
    /// The number of consecutive k that are `k_step` apart (`plane`), and the distance from one such run to the next (`sample`).
    pub plane: usize,
    pub sample: usize,
}

impl<'a, F> Lines<'a, F> {
    /// A matrix whose rows have `row` elements.
    pub fn matrix(data: &'a [F], row: usize) -> Lines<'a, F> {
        Lines { data, k_step: row, j_step: 1, plane: usize::MAX, sample: 0 }
    }

    /// The transpose of a matrix whose rows have `row` elements.
    pub fn transposed(data: &'a [F], row: usize) -> Lines<'a, F> {
        Lines { data, k_step: 1, j_step: row, plane: usize::MAX, sample: 0 }
    }
}

impl<F: Float> Lines<'_, F> {
    /// With few rows (`m`), reading in place is faster than packing, unless the lines would share a few sets of the cache.
    fn direct(&self, m: usize, n: usize, depth: usize) -> Option<Direct<'_, F>> {
        let apart = !self.k_step.is_multiple_of(128);
        if self.j_step != 1 || self.plane < depth || !n.is_multiple_of(VECTOR) || m > 256 || !apart {
            return None;
        }
        let offsets = (0..depth).map(|k| k * self.k_step).collect();
        Some(Direct { data: self.data, offsets, columns: Box::new(|j| j) })
    }

    fn pack(&self, ks: Range<usize>, cols: Range<usize>, panel: &mut [F]) {
        let width = cols.len().next_multiple_of(VECTOR);
        let mut k = ks.start;
        while k < ks.end {
            let run = (self.plane - k % self.plane).min(ks.end - k);
            let start =
                k / self.plane * self.sample + k % self.plane * self.k_step + cols.start * self.j_step;
            let lines = &mut panel[(k - ks.start) * width..][..run * width];
            if self.j_step == 1 && cols.len() == width && vectors::<F>() {
                let last = start + (run - 1) * self.k_step + width;
                copy_lines(&self.data[start..last], self.k_step, (run, width), lines, width);
            } else if self.j_step == 1 {
                for (line, k) in lines.chunks_exact_mut(width).zip(0..) {
                    let (line, rest) = line.split_at_mut(cols.len());
                    line.copy_from_slice(&self.data[start + k * self.k_step..][..cols.len()]);
                    rest.fill(F::ZERO);
                }
            } else {
                transpose(&self.data[start..], (run, cols.len()), self.j_step, lines, width);
            }
            k += run;
        }
    }
}

/// Whether [`copy_lines`] and [`strips`] support this type on this processor.
pub(super) fn vectors<F: Float>() -> bool {
    tile::targets::<F>()
}

/// Copies `to[line * apart + j] = from[line * step + j]`, for whole vectors of j below `width`; only for types that have
/// [`vectors`].
pub(super) fn copy_lines<F: Float>(
    from: &[F],
    step: usize,
    (lines, width): (usize, usize),
    to: &mut [F],
    apart: usize,
) {
    let fits = |length: usize, step: usize| lines == 0 || length >= (lines - 1) * step + width;
    assert!(fits(from.len(), step) && fits(to.len(), apart) && vectors::<F>());
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instructions were detected and F is f32; the assert above keeps every line inside both slices.
    #[allow(unsafe_code, reason = "intrinsics")]
    unsafe {
        let (from, to) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
        match Isa::best() {
            Isa::Avx512 => tile::wide::copy_lines(from, step, (lines, width), to, apart),
            _ => tile::middle::copy_lines(from, step, (lines, width), to, apart),
        }
    }
}

/// Fills `SIDE_BY_SIDE` strips from lines that are `step` elements apart; only for types that have [`vectors`].
pub(super) fn strips<F: Float>(from: &[F], step: usize, lines: usize, to: &mut [F]) {
    let each = lines * ROWS;
    let fits = lines == 0 || from.len() >= (lines - 1) * step + SIDE_BY_SIDE * ROWS;
    assert!(fits && to.len() >= SIDE_BY_SIDE * each && vectors::<F>());
    #[cfg(target_arch = "x86_64")]
    // SAFETY: AVX2 was detected and F is f32; the assert above keeps every line and every strip inside its slice.
    #[allow(unsafe_code, reason = "intrinsics")]
    unsafe {
        let (from, to) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
        tile::middle::strips::<SIDE_BY_SIDE>(from, step, lines, to, each);
    }
}

compiled_here! {
/// Computes `lines[k][j] = data[j * step + k]`, for k below `depth` and j below `cols`; the rest of each line becomes 0.
pub(crate) fn transpose<F>(data: &[F], size: (usize, usize), step: usize, lines: &mut [F], width: usize) {
    let (depth, cols) = size;
    assert!(
        depth == 0 || cols == 0 || data.len() >= (cols - 1) * step + depth && lines.len() >= depth * width
    );
    #[cfg(target_arch = "x86_64")]
    let done = if vectors::<F>() { blocks(data, (depth, cols), step, lines, width) } else { (0, 0) };
    #[cfg(not(target_arch = "x86_64"))]
    let done = (0, 0);
    for (k, line) in lines.chunks_exact_mut(width).enumerate().take(depth) {
        let from = if k < done.0 { done.1 } else { 0 };
        for (j, to) in line.iter_mut().enumerate().skip(from) {
            *to = if j < cols { data[j * step + k] } else { F::ZERO };
        }
    }
}
}

/// Computes the part of [`transpose`] that whole blocks of 16 x 16 elements cover: the depth up to a multiple of 16; and all columns, or
/// the columns up to a multiple of 16 if the lines have no space for another whole vector. Returns the covered (lines, columns).
#[cfg(target_arch = "x86_64")]
fn blocks<F: Float>(
    data: &[F],
    (depth, cols): (usize, usize),
    step: usize,
    lines: &mut [F],
    width: usize,
) -> (usize, usize) {
    const AREA: usize = VECTOR * VECTOR;
    let whole = (depth / VECTOR, cols / VECTOR);
    let (from, to) = (data.as_ptr().cast::<f32>(), lines.as_mut_ptr().cast::<f32>());
    let turn = match Isa::best() {
        Isa::Avx512 => tile::wide::transpose,
        _ => tile::middle::transpose,
    };
    let block = |k: usize, j: usize| {
        // SAFETY: the instructions were detected, F is f32 (the only `Float` of its size), and the assert of `transpose` keeps the
        // 16 x 16 elements inside both slices.
        #[allow(unsafe_code, reason = "intrinsics")]
        unsafe {
            turn(from.add(j * step + k), step, to.add(k * width + j), width);
        }
    };
    let (ks, js) = (0..whole.0, 0..whole.1);
    // The loop runs along the longer lines: steps along the shorter lines would map to a few sets of the cache.
    if width >= step {
        ks.for_each(|k| js.clone().for_each(|j| block(k * VECTOR, j * VECTOR)));
    } else {
        js.for_each(|j| ks.clone().for_each(|k| block(k * VECTOR, j * VECTOR)));
    }
    let first = whole.1 * VECTOR;
    if first == cols || first + VECTOR > width {
        return (whole.0 * VECTOR, first);
    }
    let mut last = [F::ZERO; AREA];
    for k in (0..whole.0 * VECTOR).step_by(VECTOR) {
        for (j, row) in (first..cols).zip(last.chunks_exact_mut(VECTOR)) {
            copy::<F, VECTOR>(row, &data[j * step + k..]);
        }
        // SAFETY: instructions and type as for whole blocks; missing columns are zeros of `last`, and a line has space for them.
        #[allow(unsafe_code, reason = "intrinsics")]
        unsafe {
            turn(last.as_ptr().cast(), VECTOR, to.add(k * width + first), width);
        }
    }
    (whole.0 * VECTOR, first + VECTOR)
}

/// The patches of padded pictures as a right operand: k counts (channel, row, column) of the kernel, j counts (sample, row, column)
/// of the output.
#[derive(Clone, Copy)]
pub(crate) struct Patches<'a, F> {
    /// The padded pictures, `sample` elements apart, with channels of `height` x `width`.
    pub data: &'a [F],
    pub sample: usize,
    pub height: usize,
    pub width: usize,
    /// The side of the kernel in pixels.
    pub kernel: usize,
    pub stride: usize,
    /// Height and width of the output picture, P and Q.
    pub output: (usize, usize),
}

impl<F: Float> Patches<'_, F> {
    /// Patches are read in place if the stride is 1 and output lines are whole vectors.
    fn direct(&self, depth: usize) -> Option<Direct<'_, F>> {
        let (rows, line) = self.output;
        if self.stride != 1 || !line.is_multiple_of(VECTOR) {
            return None;
        }
        let (area, plane) = (self.kernel * self.kernel, self.height * self.width);
        let offset = |k: usize| k / area * plane + k % area / self.kernel * self.width + k % self.kernel;
        let Patches { sample, width, data, .. } = *self;
        let columns =
            Box::new(move |j: usize| j / (rows * line) * sample + j / line % rows * width + j % line);
        Some(Direct { data, offsets: (0..depth).map(offset).collect(), columns })
    }

    fn pack(&self, ks: Range<usize>, cols: Range<usize>, panel: &mut [F]) {
        let width = cols.len().next_multiple_of(VECTOR);
        // The runs of output pixels in the columns: (first column in the panel, number of pixels, offset in a channel).
        let (rows, line) = self.output;
        let mut runs = [(0, 0, 0); 3 * VECTOR];
        let (mut count, mut j) = (0, cols.start);
        while j < cols.end {
            let (sample, p, q) = (j / (rows * line), j / line % rows, j % line);
            let length = (line - q).min(cols.end - j);
            let at = sample * self.sample + p * self.stride * self.width + q * self.stride;
            runs[count] = (j - cols.start, length, at);
            count += 1;
            j += length;
        }
        let (area, plane) = (self.kernel * self.kernel, self.height * self.width);
        for (k, out) in ks.zip(panel.chunks_exact_mut(width)) {
            let start = k / area * plane + k % area / self.kernel * self.width + k % self.kernel;
            for &(to, length, at) in &runs[..count] {
                let (from, to) = (start + at, &mut out[to..to + length]);
                match (self.stride, length) {
                    // Copies of whole vectors and of small pictures' lines: a copy of a known size is a few instructions.
                    (1, 32) => copy::<F, 32>(to, &self.data[from..]),
                    (1, 16) => copy::<F, 16>(to, &self.data[from..]),
                    (1, 8) => copy::<F, 8>(to, &self.data[from..]),
                    (1, 4) => copy::<F, 4>(to, &self.data[from..]),
                    (1, _) => to.copy_from_slice(&self.data[from..from + length]),
                    (stride, _) => {
                        let source = self.data[from..].iter().step_by(stride);
                        to.iter_mut().zip(source).for_each(|(to, &from)| *to = from);
                    }
                }
            }
            out[cols.len()..].fill(F::ZERO);
        }
    }
}

#[inline(always)]
pub(super) fn copy<F: Float, const N: usize>(to: &mut [F], from: &[F]) {
    if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk::<N>()) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers whole blocks in both orders, rests on either side, and lines that are longer than their content.
    #[test]
    fn a_transpose_has_every_element_in_its_place_and_zeros_beyond() {
        for (depth, cols, step, width) in [
            (128, 10, 128, 16),
            (48, 10, 48, 10),
            (784, 48, 784, 48),
            (100, 50, 104, 64),
            (64, 1024, 64, 1024),
            (1024, 64, 1024, 64),
            (33, 17, 256, 40),
            (5, 3, 5, 3),
            (0, 4, 7, 4),
        ] {
            let data: Vec<f32> = (0..cols * step).map(|i| i as f32 + 1.0).collect();
            let mut lines = vec![-1f32; depth * width];
            transpose(&data, (depth, cols), step, &mut lines, width);
            for (at, &value) in lines.iter().enumerate() {
                let (k, j) = (at / width, at % width);
                let want = if j < cols { data[j * step + k] } else { 0.0 };
                assert!(value == want, "{depth} x {cols}, {step} to {width}: line {k}, column {j}");
            }
        }
    }
}
