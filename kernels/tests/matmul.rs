//! Matrix products: against the definition, and with the same bits for any layout of the operands and any number of threads.
#![allow(missing_docs, clippy::unwrap_used)]

use allfold_kernels::nn::{Matrix, Store, ThreadPool, matmul};
use proptest::prelude::*;

/// Numbers in -1..1 that differ by `seed`.
fn numbers(count: usize, seed: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 65_537) as f64 / 32_768.5 - 1.0).collect()
}

proptest! {
    #[test]
    fn equals_the_definition(
        m in 0usize..20, n in 0usize..20, k in prop_oneof![0usize..20, 505usize..1030],
        a_t: bool, b_t: bool, add: bool,
    ) {
        let (a, b, before) = (numbers(m * k, 1), numbers(k * n, 2), numbers(m * n, 3));
        let left = if a_t { Matrix::new(&a, k, m).t() } else { Matrix::new(&a, m, k) };
        let right = if b_t { Matrix::new(&b, n, k).t() } else { Matrix::new(&b, k, n) };
        let mut out = before.clone();
        matmul(&mut out, if add { Store::Add } else { Store::Replace }, left, right);
        for i in 0..m {
            for j in 0..n {
                let entry = |d: usize| {
                    let x = if a_t { a[d * m + i] } else { a[i * k + d] };
                    x * if b_t { b[j * k + d] } else { b[d * n + j] }
                };
                let want = (0..k).map(entry).sum::<f64>() + if add { before[i * n + j] } else { 0.0 };
                prop_assert!((out[i * n + j] - want).abs() < 1e-11, "{i},{j}: {} {want}", out[i * n + j]);
            }
        }
    }
}

/// Covers transposed operands, copied in pieces of 32 rows, of eight and of the rest; straight operands of whole vectors and
/// others; and depths of more than one block.
#[test]
fn how_operands_lie_changes_no_bits() {
    let turn = |x: &[f32], rows: usize| -> Vec<f32> {
        let cols = x.len() / rows;
        (0..x.len()).map(|i| x[i % rows * cols + i / rows]).collect()
    };
    let narrow = |x: Vec<f64>| x.into_iter().map(|x| x as f32).collect::<Vec<_>>();
    for (m, n, k) in [(300, 64, 400), (77, 50, 20), (32, 48, 33), (40, 128, 800), (7, 16, 64), (256, 512, 9)]
    {
        let (a, b) = (narrow(numbers(m * k, 1)), narrow(numbers(k * n, 2)));
        let (a_turned, b_turned) = (turn(&a, m), turn(&b, k));
        let all = |a_t: bool, b_t: bool| {
            let left = if a_t { Matrix::new(&a_turned, k, m).t() } else { Matrix::new(&a, m, k) };
            let right = if b_t { Matrix::new(&b_turned, n, k).t() } else { Matrix::new(&b, k, n) };
            let mut out = vec![9f32; m * n];
            matmul(&mut out, Store::Replace, left, right);
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let want = all(false, false);
        for (a_t, b_t) in [(true, false), (false, true), (true, true)] {
            assert!(all(a_t, b_t) == want, "{m} x {n} x {k}, turned: {a_t}, {b_t}");
        }
    }
}

/// Covers shapes that are cut by rows, by columns between panels and between vectors, and edges that fill no tile.
#[test]
fn threads_change_no_bits() {
    for (m, n, k) in [(256, 128, 40), (130, 67, 70), (64, 128, 100), (40, 784, 64), (9, 1000, 60)] {
        let all = |threads: usize, a_t: bool| {
            let narrow = |x: Vec<f64>| x.into_iter().map(|x| x as f32).collect::<Vec<_>>();
            let (a, b) = (narrow(numbers(m * k, 1)), narrow(numbers(k * n, 2)));
            let left = if a_t { Matrix::new(&a, k, m).t() } else { Matrix::new(&a, m, k) };
            let mut out = narrow(numbers(m * n, 3));
            ThreadPool::new(threads).enter(|| matmul(&mut out, Store::Add, left, Matrix::new(&b, n, k).t()));
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        for a_t in [false, true] {
            let want = all(1, a_t);
            for threads in [2, 3, 5] {
                assert!(all(threads, a_t) == want, "{m} x {n} x {k}, {threads} threads, turned {a_t}");
            }
        }
    }
}
