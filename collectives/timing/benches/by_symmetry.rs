//! Benchmark: simulating a hundred thousand ranks with one representative per symmetry class.
//!
//! `cargo bench -p allfold-timing --bench by_symmetry`

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_schedules::registry::{self, Shape};
use allfold_schedules::{Collective, Geometry};
use allfold_sim::Topology;
use allfold_timing::{Engine, Job, simulate};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const RANKS: u32 = 131_072;

fn by_symmetry(c: &mut Criterion) {
    println!("all-reduce of 1 GiB over {RANKS} ranks; target: the ring on nodes8 in less than 1 s");
    for algorithm in ["ring", "halving_doubling"] {
        let row = registry::find(Collective::AllReduce, algorithm).unwrap();
        let schedule = row.build(Shape::new(RANKS).unwrap()).unwrap();
        let geometry = Geometry::whole(&*schedule, 1 << 28);
        for name in ["switch", "nodes8", "nodes8x1"] {
            let topology = Topology::named(name, RANKS).unwrap();
            let job = Job::new(&*schedule, &geometry, 4, &topology);
            let messages = simulate(&job, Engine::BySymmetry).unwrap().messages;
            let mut group = c.benchmark_group(format!("by_symmetry/{algorithm}"));
            group.sample_size(10).throughput(Throughput::Elements(messages));
            group.bench_function(name, |b| b.iter(|| simulate(&job, Engine::BySymmetry).unwrap().time));
        }
    }
}

criterion_group!(benches, by_symmetry);
criterion_main!(benches);
