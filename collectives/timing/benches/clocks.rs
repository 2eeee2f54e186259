//! Benchmark: messages per second of the `clocks` engine, with every rank stepped and link ownership checked.
//!
//! `cargo bench -p allfold-timing --bench clocks`

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_schedules::registry::{self, Shape};
use allfold_schedules::{Collective, Geometry};
use allfold_sim::Topology;
use allfold_timing::{Engine, Job, Method, simulate};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Times an all-reduce of 1 GiB of f32; `target` is the rate to reach, in messages per second.
fn all_reduce(c: &mut Criterion, algorithm: &str, ranks: u32, target: &str) {
    let row = registry::find(Collective::AllReduce, algorithm).unwrap();
    let schedule = row.build(Shape::new(ranks).unwrap()).unwrap();
    let geometry = Geometry::whole(&*schedule, 1 << 28);
    for name in ["switch", "nodes8"] {
        let topology = Topology::named(name, ranks).unwrap();
        let job = Job::new(&*schedule, &geometry, 4, &topology);
        let once = simulate(&job, Engine::Full).unwrap();
        assert_eq!(once.method, Method::Clocks);
        let mut group = c.benchmark_group(format!("clocks/{algorithm}/{ranks}"));
        group.sample_size(10).throughput(Throughput::Elements(once.messages));
        println!("{} messages; target: {target} messages/s or more", once.messages);
        group.bench_function(name, |b| b.iter(|| simulate(&job, Engine::Full).unwrap().time));
    }
}

fn clocks(c: &mut Criterion) {
    all_reduce(c, "ring", 4_096, "10 million");
    all_reduce(c, "halving_doubling", 131_072, "4 million");
}

criterion_group!(benches, clocks);
criterion_main!(benches);
