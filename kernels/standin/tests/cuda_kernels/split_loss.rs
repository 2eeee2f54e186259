//! Tests of split_loss.cu, and of embedding.cu with tables in parts: ranks run one after another, and are combined on the host.

use super::common::{Trained, near, of, same, units, wide};
use allfold_cuda::launch::{self, ClassPart, EmbeddingLaunch};
use allfold_cuda::{Memory, Queue};
use allfold_kernels::nn::{Loss, LossKind};
use allfold_kernels::{bf16, f16};

pub fn check(queue: &Queue) {
    parts::<f32>(queue);
    parts::<f16>(queue);
    parts::<bf16>(queue);
    tables::<f32>(queue);
    tables::<bf16>(queue);
}

/// Combines the ranks' values element by element, and gives the result to each rank.
fn combine(queue: &Queue, ranks: &[Memory], how: impl Fn(f32, f32) -> f32) {
    let all: Vec<Vec<f32>> = ranks.iter().map(|rank| queue.download(rank.all()).unwrap()).collect();
    let fold = |at: usize| all.iter().map(|rank| rank[at]).reduce(&how).unwrap();
    let combined: Vec<f32> = (0..all[0].len()).map(fold).collect();
    ranks.iter().for_each(|rank| queue.write(rank.all(), &combined).unwrap());
}

fn parts<T: Trained>(queue: &Queue) {
    for (n, sizes) in [(5, &[2usize, 1, 4][..]), (3, &[300, 257]), (1, &[1])] {
        let total: usize = sizes.iter().sum();
        let mut x: Vec<T> = of(&units(n * total, 1).iter().map(|x| 20.0 * x).collect::<Vec<_>>());
        // Of two equal logits on different ranks, the first is the largest.
        (x[0], x[total - 1]) = (T::of(31.0), T::of(31.0));
        let labels: Vec<u32> = (0..n).map(|i| (i * 7 % total) as u32).collect();
        let f64s = wide(&x);
        let glabels = queue.upload(&labels).unwrap();
        let part = |of: &[T], first: usize, classes: usize| -> Vec<T> {
            of.chunks(total).flat_map(|row| row[first..first + classes].to_vec()).collect()
        };
        let firsts: Vec<usize> = (0..sizes.len()).map(|rank| sizes[..rank].iter().sum()).collect();
        let shares: Vec<(ClassPart, Memory)> = firsts
            .iter()
            .zip(sizes)
            .map(|(&first, &classes)| {
                let own = ClassPart { dtype: T::DTYPE, classes, first, total };
                (own, queue.upload(&part(&x, first, classes)).unwrap())
            })
            .collect();
        let buffers = |bytes: usize| -> Vec<Memory> {
            shares.iter().map(|_| queue.memory(bytes * n).unwrap()).collect()
        };
        let (most, sums, losses) = (buffers(4), buffers(8), buffers(4));
        for kind in [LossKind::CrossEntropy, LossKind::Mse] {
            let cpu = Loss { classes: total, kind };
            let mut dx = vec![0.0; n * total];
            let want = cpu.forward_backward(&f64s, &labels, 1.0, &mut dx);
            let dx: Vec<T> = of(&dx.iter().map(|dx| *dx as f32).collect::<Vec<_>>());
            if kind == LossKind::CrossEntropy {
                for ((own, x), most) in shares.iter().zip(&most) {
                    own.largest(queue, x.all(), most.all()).unwrap();
                }
                combine(queue, &most, f32::max);
                for (((own, x), most), sums) in shares.iter().zip(&most).zip(&sums) {
                    own.sums(queue, (x.all(), glabels.all()), most.all(), sums.all()).unwrap();
                }
                combine(queue, &sums, |a, b| a + b);
            }
            for (rank, (own, x)) in shares.iter().enumerate() {
                let gdx = queue.memory(x.len()).unwrap();
                let (given, into) = ((x.all(), glabels.all()), (Some(gdx.all()), losses[rank].all()));
                match kind {
                    LossKind::CrossEntropy => {
                        let combined = (most[rank].all(), sums[rank].all());
                        own.cross_entropy(queue, given, combined, n as f32, into).unwrap();
                    }
                    LossKind::Mse => own.mse(queue, given, n as f32, into).unwrap(),
                }
                let want = wide(&part(&dx, own.first, own.classes));
                let what = format!("{kind:?} of {:?} of {n} x {total} {}, dx", own.classes, T::DTYPE);
                near::<T>(&what, &queue.download(gdx.all()).unwrap(), &want, 2e-6);
            }
            if kind == LossKind::Mse {
                combine(queue, &losses, |a, b| a + b);
            }
            let each: Vec<f32> = queue.download(losses[0].all()).unwrap();
            let mean = each.iter().map(|loss| f64::from(*loss)).sum::<f64>() / n as f64;
            assert!((mean - want).abs() < 3e-6 * want.abs().max(1.0), "{kind:?}: {mean}, not {want}");
        }
        hits(queue, &shares, (&f64s, &labels));
        // A label that is no class gives NaN and no gradient.
        let (wrong, (own, x)) = (queue.upload(&vec![total as u32; n]).unwrap(), &shares[0]);
        let (gdx, given) = (queue.memory(x.len()).unwrap(), (x.all(), wrong.all()));
        let combined = (most[0].all(), sums[0].all());
        own.cross_entropy(queue, given, combined, 1.0, (Some(gdx.all()), losses[0].all())).unwrap();
        assert!(queue.download::<f32>(losses[0].all()).unwrap().iter().all(|x| x.is_nan()));
        assert!(queue.download::<T>(gdx.all()).unwrap().iter().all(|x| x.wide() == 0.0));
    }
}

/// The ranks together find the rows whose largest logit, the first of equal logits, is at the label.
fn hits(queue: &Queue, shares: &[(ClassPart, Memory)], (logits, labels): (&[f64], &[u32])) {
    let glabels = queue.upload(labels).unwrap();
    let best: Vec<i64> = shares
        .iter()
        .map(|(own, x)| {
            let best = queue.memory(8 * labels.len()).unwrap();
            own.best(queue, x.all(), best.all()).unwrap();
            queue.download::<i64>(best.all()).unwrap()
        })
        .reduce(|a, b| a.into_iter().zip(b).map(|(a, b)| a.max(b)).collect())
        .unwrap();
    let (best, hits) = (queue.upload(&best).unwrap(), queue.memory(4 * labels.len()).unwrap());
    launch::class_hits(queue, best.all(), glabels.all(), hits.all()).unwrap();
    let hits: Vec<u32> = queue.download(hits.all()).unwrap();
    let cpu = Loss::cross_entropy(shares[0].0.total);
    assert_eq!(hits.iter().sum::<u32>() as u64, cpu.correct(logits, labels));
}

/// Each row of a table is on one rank: another rank reads 0, and has no gradient for it.
fn tables<T: Trained>(queue: &Queue) {
    let (columns, tokens) = (3, [4u32, 0, 6, 2, 4, 5]);
    let table: Vec<T> = of(&units(7 * columns, 1));
    let dy: Vec<T> = of(&units(tokens.len() * columns, 2));
    let (gtokens, gdy) = (queue.upload(&tokens).unwrap(), queue.upload(&dy).unwrap());
    for rows in [0..3usize, 3..7] {
        let own = &table[rows.start * columns..rows.end * columns];
        let shape = EmbeddingLaunch {
            dtype: T::DTYPE,
            vocabulary: rows.len(),
            part_from: Some(rows.start as u32),
            columns,
            length: tokens.len(),
        };
        let (gtable, gy) = (queue.upload(own).unwrap(), queue.memory(gdy.len()).unwrap());
        launch::embedding(queue, &shape, (gtable.all(), None), gtokens.all(), gy.all()).unwrap();
        let (mut y, mut dtable) = (Vec::new(), vec![0.0f32; own.len()]);
        for (i, token) in tokens.iter().enumerate() {
            let row = (*token as usize).checked_sub(rows.start).filter(|row| *row < rows.len());
            for c in 0..columns {
                y.push(row.map_or(T::of(0.0), |row| own[row * columns + c]));
                if let Some(row) = row {
                    dtable[row * columns + c] += dy[i * columns + c].wide();
                }
            }
        }
        same("a part of an embedding", &queue.download::<T>(gy.all()).unwrap(), &y);
        launch::embedding_back(queue, &shape, gtokens.all(), gdy.all(), (gtable.all(), None), false).unwrap();
        same("its gradient", &queue.download::<T>(gtable.all()).unwrap(), &of::<T>(&dtable));
    }
}
