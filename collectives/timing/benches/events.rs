//! Benchmark: messages per second of the event queue, with every rank stepped and links shared.
//!
//! ```text
//! cargo bench -p allfold-timing --bench events
//! ```
//!
//! Target on one core: 1 million messages per second for a double binary tree over 4,096 ranks with a window of 128 and even
//! splits.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_schedules::registry::{self, Shape};
use allfold_schedules::schedule::{Schedule, Segments};
use allfold_schedules::{Collective, Geometry};
use allfold_sim::{Costs, Sharing, Topology};
use allfold_timing::{Job, Outcome, traced};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

struct Case {
    name: &'static str,
    algorithm: &'static str,
    topology: &'static str,
    ranks: u32,
    segments: u32,
    window: u32,
    sharing: Sharing,
}

const CASES: [Case; 5] = [
    Case {
        name: "double tree, split (target 1 M/s)",
        algorithm: "double_binary_tree",
        topology: "switch",
        ranks: 4_096,
        segments: 64,
        window: 128,
        sharing: Sharing::Split,
    },
    Case {
        name: "double tree on nodes of 8, split",
        algorithm: "double_binary_tree",
        topology: "nodes8",
        ranks: 4_096,
        segments: 64,
        window: 128,
        sharing: Sharing::Split,
    },
    Case {
        name: "double tree, max-min",
        algorithm: "double_binary_tree",
        topology: "switch",
        ranks: 63,
        segments: 32,
        window: 128,
        sharing: Sharing::MaxMin,
    },
    Case {
        name: "halving-doubling over shared NICs",
        algorithm: "halving_doubling",
        topology: "nodes8x1",
        ranks: 4_096,
        segments: 1,
        window: 1,
        sharing: Sharing::Split,
    },
    Case {
        name: "ring",
        algorithm: "ring",
        topology: "switch",
        ranks: 1_024,
        segments: 1,
        window: 1,
        sharing: Sharing::Split,
    },
];

impl Case {
    fn run(&self) -> Outcome {
        let shape = Shape::new(self.ranks).unwrap();
        let built = registry::find(Collective::AllReduce, self.algorithm).unwrap().build(shape).unwrap();
        let schedule = Segments::new(built, self.segments);
        let geometry = Geometry::whole(&schedule, u64::from(schedule.segments()) << 17);
        let topology = Topology::named(self.topology, self.ranks).unwrap();
        let job = Job {
            window: self.window,
            sharing: self.sharing.into(),
            costs: Costs::FREE,
            ..Job::new(&schedule, &geometry, 1, &topology)
        };
        traced(&job, &mut |_| {}).unwrap()
    }
}

fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("events");
    group.sample_size(10);
    for case in &CASES {
        let outcome = case.run();
        group.throughput(Throughput::Elements(outcome.messages));
        let id = BenchmarkId::new(case.name, format!("{} ranks, {} messages", case.ranks, outcome.messages));
        group.bench_function(id, |b| b.iter(|| case.run()));
    }
    group.finish();
}

criterion_group!(benches, events);
criterion_main!(benches);
