#![allow(unsafe_code, reason = "the kernels of every instruction set there is, not of the best alone")]

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
