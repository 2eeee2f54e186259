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
#[allow(unsafe_code, reason = "the kernels of every instruction set there is, not of the best alone")]
mod tests {
    use super::*;
    use crate::nn::gradcheck::numbers;

    const ROW: usize = 100;
    const WALK: Walk = Walk { counts: [2, 3, 7], steps: [50, 11, 1] };
    const DEPTH: usize = 2 * 3 * 7;

    fn sets() -> (bool, bool) {
        (Isa::best() >= Isa::Avx2, Isa::best() >= Isa::Avx512)
    }

    /// The expected tile: a chain of fused multiply-adds for each element, plus the old content if `before` is given.
    fn wanted<F: Float>(data: &[F], panel: &[F], vectors: usize, before: Option<F>) -> Vec<F> {
        let element = |r: usize, column: usize| {
            let chain = (0..DEPTH).fold(F::ZERO, |sum, k| {
                data[r * ROW + WALK.at(k)].mul_add(panel[k * vectors * VECTOR + column], sum)
            });
            before.map_or(chain, |before| before + chain)
        };
        (0..ROWS)
            .flat_map(|r| (0..vectors * VECTOR).map(move |column| (r, column)))
            .map(|(r, c)| element(r, c))
            .collect()
    }

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_chain() {
        let rows: [usize; ROWS] = std::array::from_fn(|r| r * ROW);
        let (middle, wide) = sets();
        for (vectors, add) in (1..=3).flat_map(|vectors| [(vectors, false), (vectors, true)]) {
            let (data, panel) = (numbers(ROWS * ROW, 1), numbers(DEPTH * vectors * VECTOR, 2));
            let line = vectors * VECTOR;
            let before = add.then_some(0.75);
            let want = wanted(&data, &panel, vectors, before);
            if middle {
                let mut out = vec![0.75; ROWS * line];
                let to = Target { start: out.as_mut_ptr(), line, add };
                // SAFETY: the instructions were detected; all slices are as long as `wanted` reads them.
                unsafe { middle::f64::tile(&data, &rows, &WALK, (&panel, vectors), to) };
                assert_eq!(out, want, "AVX2, f64, {vectors}, {add}");
            }
            let narrow = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
            let (data, panel) = (narrow(&data), narrow(&panel));
            let want = wanted(&data, &panel, vectors, before.map(|x| x as f32));
            let offsets: Vec<usize> = (0..DEPTH).map(|k| k * line).collect();
            let bases = &[0, VECTOR, 2 * VECTOR][..vectors];
            // The rows with equally long steps, for operands that are read in place.
            let flat: Vec<f32> = rows
                .iter()
                .flat_map(|row| (0..DEPTH).map(move |k| (row, k)))
                .map(|(row, k)| data[row + WALK.at(k)])
                .collect();
            let starts: [usize; ROWS] = std::array::from_fn(|r| r * DEPTH);
            let check = |what: &str, kernel: &dyn Fn(Target<f32>)| {
                let mut out = vec![0.75; ROWS * line];
                kernel(Target { start: out.as_mut_ptr(), line, add });
                assert_eq!(out, want, "{what}, f32, {vectors}, {add}");
            };
            // SAFETY: the instructions were detected; all slices are as long as `wanted` reads them.
            unsafe {
                if middle {
                    check("AVX2", &|to| middle::f32::tile(&data, &rows, &WALK, (&panel, vectors), to));
                    check("AVX2, direct", &|to| {
                        middle::direct((&flat, &starts, 1), (&panel, bases, &offsets), to);
                    });
                }
                if wide {
                    check("AVX-512", &|to| match vectors {
                        1 => wide::tile::<1>(&data, &rows, &WALK, &panel, to),
                        2 => wide::tile::<2>(&data, &rows, &WALK, &panel, to),
                        _ => wide::tile::<3>(&data, &rows, &WALK, &panel, to),
                    });
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_transposes() {
        let from: Vec<f32> = (0..16 * 20).map(|i| i as f32).collect();
        let (middle, wide) = sets();
        let check = |kernel: unsafe fn(*const f32, usize, *mut f32, usize)| {
            let mut to = vec![0f32; 16 * 18];
            // SAFETY: the instructions were detected; both sides have 16 lines of 16 elements.
            unsafe { kernel(from.as_ptr(), 20, to.as_mut_ptr(), 18) };
            for (at, &value) in to.iter().enumerate().filter(|(at, _)| at % 18 < 16) {
                assert_eq!(value, (at % 18 * 20 + at / 18) as f32);
            }
        };
        if middle {
            check(middle::transpose);
        }
        if wide {
            check(wide::transpose);
        }
    }
}
