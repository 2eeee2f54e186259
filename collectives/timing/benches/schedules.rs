//! Benchmark: steps per second of every registered algorithm, the cost that any interpreter of a schedule has.
//!
//! `cargo bench -p allfold-timing --bench schedules`

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_schedules::registry::{ALGORITHMS, Shape};
use allfold_schedules::schedule::{Rank, Schedule};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

const RANKS: u32 = 1_024;
/// The greatest number of steps that the benchmark takes of each rank.
const STEPS: usize = 1_024;

/// Visits the first steps of every 16th rank with `Schedule::next`, and returns their number.
fn walk(schedule: &dyn Schedule) -> u64 {
    let mut steps = 0;
    for rank in (0..RANKS).step_by(16).map(Rank) {
        let mut round = 0;
        for _ in 0..STEPS {
            let Some(at) = schedule.next(rank, round) else { break };
            black_box(schedule.step(rank, at));
            (steps, round) = (steps + 1, at + 1);
        }
    }
    steps
}

fn schedules(c: &mut Criterion) {
    println!("steps of {RANKS} ranks; target: 20 million steps/s, so that generation is never the limit");
    let mut group = c.benchmark_group("schedules");
    for algorithm in ALGORITHMS {
        let schedule = algorithm.build(Shape::new(RANKS).unwrap()).unwrap();
        let steps = walk(&*schedule);
        group.sample_size(10).throughput(Throughput::Elements(steps));
        let name = format!("{}/{}", algorithm.collective, algorithm.name);
        group.bench_function(name, |b| b.iter(|| walk(&*schedule)));
    }
    group.finish();
}

criterion_group!(benches, schedules);
criterion_main!(benches);
