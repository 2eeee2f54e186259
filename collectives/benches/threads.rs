//! All-reduce between threads of this process, compared with the limits of memory, measured in the same run.
//!
//! `cargo bench -p allfold-collectives --bench threads`
//!
//! The throughput is algbw: bytes of the buffer over time. Limits: `copy` is a memcpy of as many bytes by one thread,
//! `add` is a += b. Every result is checked.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_collectives::{Collective, Communicator, Error, ReduceOp, World};
use allfold_kernels::reduce;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;

const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20];

/// The time of `iters` all-reduces of `bytes` by all ranks: of the slowest rank, without starting the threads.
fn all_reduce(ranks: u32, algorithm: Option<&str>, bytes: usize, iters: u64) -> Duration {
    let world = World::threads(ranks);
    let world = match algorithm {
        Some(name) => world.algorithm(Collective::AllReduce, name),
        None => world,
    };
    let times = world.run(|comm: Communicator| -> Result<u64, Error> {
        let mut data = vec![0f32; bytes / 4];
        // Once to fill the pool; the second result is checked.
        for value in [1.0, 2.0] {
            data.fill(value);
            comm.all_reduce(&mut data, ReduceOp::Sum)?;
        }
        assert!(data.iter().all(|sum| *sum == 2.0 * ranks as f32));
        data.fill(0.0);
        comm.barrier()?;
        let start = comm.now();
        for _ in 0..iters {
            comm.all_reduce(&mut data, ReduceOp::Sum)?;
        }
        Ok((comm.now() - start).0)
    });
    Duration::from_nanos(times.unwrap().into_iter().max().unwrap() / 1_000)
}

fn threads(c: &mut Criterion) {
    for bytes in SIZES {
        let mut group = c.benchmark_group(format!("all_reduce/{} KiB", bytes >> 10));
        group
            .sample_size(10)
            .measurement_time(Duration::from_secs(2))
            .warm_up_time(Duration::from_millis(300));
        group.throughput(Throughput::Bytes(bytes as u64));
        let (mut a, b) = (vec![0f32; bytes / 4], vec![1f32; bytes / 4]);
        group.bench_function("limit: copy", |bench| {
            bench.iter(|| black_box(&mut a).copy_from_slice(black_box(&b)))
        });
        a.fill(0.0);
        group.bench_function("limit: add", |bench| {
            bench.iter(|| reduce(ReduceOp::Sum, black_box(&mut a), black_box(&b)));
        });
        for ranks in [2, 4] {
            for algorithm in [None, Some("ring"), Some("double_binary_tree")] {
                let id = BenchmarkId::new(algorithm.unwrap_or("default"), format!("{ranks} ranks"));
                group.bench_function(id, |bench| {
                    bench.iter_custom(|iters| all_reduce(ranks, algorithm, bytes, iters));
                });
            }
        }
    }
}

criterion_group!(benches, threads);
criterion_main!(benches);
