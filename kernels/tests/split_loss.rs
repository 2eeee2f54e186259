//! Losses of rows whose classes several ranks share.
#![allow(missing_docs, clippy::unwrap_used)]

use allfold_kernels::nn::{ClassReduction, ClassSplit, Loss, LossKind};
use std::sync::{Barrier, Mutex};

/// Ranks with 2, 1 and 4 of 7 classes, as threads that combine through a table.
#[test]
fn classes_in_parts_have_the_loss_and_gradients_of_the_whole() {
    let (sizes, rows) = ([2usize, 1, 4], 5);
    let (x, labels) =
        ((0..7 * rows).map(|at| (at as f64 * 0.7).sin() * 3.0).collect::<Vec<f64>>(), [0u32, 6, 2, 2, 1]);
    for kind in [LossKind::CrossEntropy, LossKind::Mse] {
        let mut whole = vec![0.0; x.len()];
        let loss = Loss { classes: 7, kind }.forward_backward(&x, &labels, 3.0, &mut whole);
        let (table, barrier) = (Mutex::new(vec![Vec::new(); 3]), Barrier::new(3));
        std::thread::scope(|threads| {
            for (rank, &classes) in sizes.iter().enumerate() {
                let (x, whole, labels, table, barrier) = (&x, &whole, &labels, &table, &barrier);
                threads.spawn(move || {
                    let first: usize = sizes[..rank].iter().sum();
                    let part = |of: &[f64]| -> Vec<f64> {
                        of.chunks_exact(7).flat_map(|row| row[first..first + classes].to_vec()).collect()
                    };
                    let mut combine = |how: ClassReduction, values: &mut [f64]| {
                        table.lock().unwrap()[rank] = values.to_vec();
                        barrier.wait();
                        let all = table.lock().unwrap().clone();
                        barrier.wait();
                        for (at, value) in values.iter_mut().enumerate() {
                            let column = all.iter().map(|row: &Vec<f64>| row[at]);
                            *value = match how {
                                ClassReduction::Sum => column.sum(),
                                ClassReduction::Max => column.fold(f64::MIN, f64::max),
                            };
                        }
                    };
                    let (own, mut dx) = (part(x), vec![9.0; classes * rows]);
                    let split = ClassSplit { first, total: 7 };
                    let given = (&own[..], &labels[..]);
                    let mine = Loss { classes, kind }.forward_backward_split(
                        split,
                        given,
                        3.0,
                        &mut dx,
                        &mut combine,
                    );
                    assert!((mine - loss).abs() < 1e-14, "{kind:?} {rank}: {mine} {loss}");
                    let far = dx.iter().zip(part(whole)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                    assert!(far < 1e-14, "{kind:?} {rank}: {far}");
                });
            }
        });
    }
}
