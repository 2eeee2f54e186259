#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! Real results: every algorithm on every backend against an exactly ordered reference, bit for bit, and virtual
//! times against the time-only engines, to the picosecond.

use allfold_collectives::algorithms::{RingAllReduce, halving};
use allfold_collectives::check::symbolic;
use allfold_collectives::registry::{self, Algorithm, Shape};
use allfold_collectives::schedule::{Schedule, Segments, Step};
use allfold_collectives::testing;
use allfold_collectives::time::{Job, traced};
use allfold_collectives::world::WorldKind;
use allfold_collectives::{
    Collective, Communicator, DType, Element, Error, Extent, Geometry, Rank, ReduceOp, World,
};
use allfold_kernels::{bf16, divide, f16, for_dtype, reduce};
use allfold_sim::hash::splitmix;
use allfold_sim::{BytesPerSec, Costs, Faults, LinkId, Picos, Sharing, Topology};
use allfold_standin::{FiberOrder, Shim};
use proptest::prelude::*;
use std::sync::Arc;

/// One call of one collective by all ranks.
#[derive(Clone, Debug)]
struct Case {
    algorithm: &'static Algorithm,
    ranks: u32,
    /// The number of elements of the whole buffer, or for a blocked collective of a block.
    count: usize,
    op: ReduceOp,
    root: Rank,
    segment: Option<u64>,
    window: Option<u32>,
    seed: u64,
}

impl Case {
    fn collective(&self) -> Collective {
        self.algorithm.collective
    }

    fn shape(&self) -> Shape {
        Shape::new(self.ranks).unwrap().rooted(self.root).unwrap()
    }

    fn extent(&self) -> Extent {
        Extent { collective: self.collective(), ranks: self.ranks, root: self.root, count: self.count }
    }

    /// A world that runs the case's algorithm with the case's settings.
    fn plan<K: WorldKind>(&self, world: World<K>) -> World<K> {
        let world = world.algorithm(self.collective(), self.algorithm.name);
        let world = self.segment.map_or(world.clone(), |bytes| world.segment(bytes));
        self.window.map_or(world.clone(), |window| world.window(window))
    }

    /// The schedule and its geometry, as a communicator makes them from the plan.
    fn schedule(&self, element: usize) -> (Arc<dyn Schedule>, Geometry) {
        let whole = self.algorithm.build(self.shape()).unwrap();
        let chunk = (self.extent().whole() as u64).div_ceil(u64::from(whole.chunks()));
        let bytes = (self.extent().whole() * element) as u64;
        let segments = match self.segment {
            Some(segment) => (chunk * element as u64).div_ceil(segment),
            None => u64::from(self.algorithm.segments(bytes)),
        };
        let segments = segments.min(chunk).max(1) as u32;
        let schedule: Arc<dyn Schedule> =
            if segments > 1 { Arc::new(Segments::new(whole, segments)) } else { whole };
        let geometry = match self.collective().blocked() {
            true => Geometry::blocked(&schedule, self.count as u64),
            false => Geometry::whole(&schedule, self.count as u64),
        };
        (schedule, geometry)
    }
}

/// Elements of any type from a random word; some floats are NaN, infinite, zero, subnormal or near overflow.
trait Draw: Element {
    fn draw(word: u64) -> Self;
}

macro_rules! draw_float {
    ($($float:ty: $from:expr),*) => {$(
        impl Draw for $float {
            fn draw(word: u64) -> $float {
                let special = [0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-40, 6e4];
                let ordinary = (word >> 20) as f64 / (1u64 << 40) as f64 - 4.0;
                $from(if word % 97 == 0 { special[(word >> 8) as usize % 7] } else { ordinary })
            }
        }
    )*};
}

macro_rules! draw_int {
    ($($int:ty),*) => {$(
        impl Draw for $int {
            fn draw(word: u64) -> $int {
                word as $int
            }
        }
    )*};
}

draw_float!(f64: |x| x, f32: |x| x as f32, f16: f16::from_f64, bf16: bf16::from_f64);
draw_int!(i8, i16, i32, i64, u8);

/// The whole buffer of every rank before the call.
fn inputs<T: Draw>(case: &Case) -> Vec<Vec<T>> {
    let of = |rank: u32| {
        (0..case.extent().whole())
            .map(move |i| T::draw(splitmix(case.seed ^ splitmix((u64::from(rank) << 32) + i as u64))))
    };
    (0..case.ranks).map(|rank| of(rank).collect()).collect()
}

/// One rank's call. Returns the rank's result, where it is defined.
fn call<T: Element>(comm: &Communicator, case: &Case, input: &[T]) -> Result<Vec<T>, Error> {
    let (collective, extent, rank) = (case.collective(), case.extent(), comm.rank());
    let (gives, gets) = (extent.input(rank), extent.output(rank));
    if collective.out_of_place() {
        let mut out = vec![T::zeroed(); gets.len()];
        comm.collective(collective, &input[gives], &mut out, case.op, case.root)?;
        return Ok(out);
    }
    // A rank without an input passes zeros.
    let mut data = if gives.is_empty() { vec![T::zeroed(); extent.whole()] } else { input.to_vec() };
    comm.collective(collective, &[], &mut data, case.op, case.root)?;
    Ok(data[gets].to_vec())
}

/// What every rank must end with: the trees that the symbolic checker found, evaluated on the inputs.
fn expected<T: Element>(case: &Case, inputs: &[Vec<T>]) -> Vec<Vec<T>> {
    let schedule = case.algorithm.build(case.shape()).unwrap();
    let geometry = match case.collective().blocked() {
        true => Geometry::blocked(&schedule, case.count as u64),
        false => Geometry::whole(&schedule, case.count as u64),
    };
    let proof = symbolic(&schedule, case.collective(), case.root).unwrap();
    let of = |rank: u32| {
        let all = proof.evaluate(Rank(rank), &geometry, inputs, &|a, b| reduce(case.op, a, b));
        let mut own = all[case.extent().output(Rank(rank))].to_vec();
        if case.collective().reduces() && case.op == ReduceOp::Avg {
            divide(&mut own, case.ranks);
        }
        own
    };
    (0..case.ranks).map(of).collect()
}

fn holds<T: Draw>(case: &Case, worlds: &[World]) -> Result<(), TestCaseError> {
    let inputs = inputs::<T>(case);
    let want = expected(case, &inputs);
    for (at, world) in worlds.iter().enumerate() {
        let got = case
            .plan(world.clone())
            .run(|comm: Communicator| call(&comm, case, &inputs[comm.rank().index()]))
            .map_err(|error: Error| TestCaseError::fail(format!("world {at}: {error}")))?;
        for rank in 0..case.ranks as usize {
            let (got, want): (&[u8], &[u8]) =
                (bytemuck::cast_slice(&got[rank]), bytemuck::cast_slice(&want[rank]));
            prop_assert_eq!(got, want, "world {}, rank {}, {}", at, rank, T::DTYPE);
        }
    }
    Ok(())
}

fn holds_for(dtype: DType, case: &Case, worlds: &[World]) -> Result<(), TestCaseError> {
    for_dtype!(dtype, holds(case, worlds))
}

fn cases() -> impl Strategy<Value = Case> {
    let ranks = prop_oneof![6 => 1..=9u32, 2 => 10..=17u32, 1 => 18..=40u32];
    let count = prop_oneof![1 => Just(0usize), 3 => 1..40usize, 2 => 40..700usize];
    let algorithm = prop::sample::select(registry::ALGORITHMS.iter().collect::<Vec<_>>());
    let segment = prop::option::of(prop_oneof![1..64u64, 64..4096u64]);
    let window = prop::option::of(1..=64u32);
    let op = prop::sample::select(ReduceOp::ALL.to_vec());
    (algorithm, ranks, count, op, any::<u32>(), segment, window, any::<u64>()).prop_map(
        |(algorithm, ranks, count, op, root, segment, window, seed)| {
            let root = if algorithm.collective.rooted() { Rank(root % ranks) } else { Rank(0) };
            let count = if algorithm.collective == Collective::Barrier { 0 } else { count };
            Case { algorithm, ranks, count, op, root, segment, window, seed }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: allfold_tests::cases(96), max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_algorithm_gives_the_bits_of_its_trees_on_every_backend(
        case in cases(),
        dtype in prop::sample::select(DType::ALL.to_vec()),
        buffered in 0..5usize,
        topology in prop::sample::select(vec!["switch", "ring", "mesh", "nodes8x1"]),
    ) {
        let topology = Topology::named(topology, case.ranks).unwrap();
        let threads = World::threads(case.ranks);
        let mut worlds = vec![threads.clone().any(), threads.buffered(buffered).any(), World::sim(&topology).any()];
        // Sockets connect all pairs of ranks; up to 9 ranks cover every shape of a schedule.
        if case.ranks <= 9 {
            worlds.push(World::tcp(case.ranks).any());
            worlds.push(World::shm(case.ranks).any());
            worlds.push(World::tcp(case.ranks).ranks_per_host(1 + case.ranks / 2).any());
        }
        holds_for(dtype, &case, &worlds)?;
    }

    #[test]
    fn every_algorithm_gives_the_bits_of_its_trees_on_devices_and_over_nccl(
        algorithm in prop::sample::select(registry::ALGORITHMS.iter().collect::<Vec<_>>()),
        case in testing::cases(9),
    ) {
        let shim = Shim::open(FiberOrder::Upwards).unwrap();
        allfold_gpu::testing::runs_on(&shim, algorithm, &case).map_err(|failure| TestCaseError::fail(failure.to_string()))?;
    }

    #[test]
    fn the_virtual_finish_is_what_the_time_only_engines_say(
        case in cases(),
        name in prop::sample::select(vec!["switch", "ring", "mesh", "nodes8", "nodes8x1"]),
        (overhead, memory) in (0..3_000_000u64, prop::option::of(1_000_000_000..1_000_000_000_000u64)),
        sharing in prop::sample::select(vec![Sharing::Split, Sharing::MaxMin]),
        slow in prop::option::of(0..100u32),
        slow_link in prop::option::of((any::<u32>(), prop::sample::select(vec!["x7", "x1.5", "+3us"]))),
    ) {
        let topology = Topology::named(name, case.ranks).unwrap();
        let costs = Costs { overhead: Picos(overhead), memory: memory.map(BytesPerSec), ..Costs::default() };
        let link = |at: u32| topology.link_name(LinkId(at % topology.links()));
        let rules = [
            slow.map(|rank| format!("slow_rank={}:x2.5", rank % case.ranks)),
            slow_link.filter(|_| topology.links() > 0).map(|(at, how)| format!("slow_link={}:{how}", link(at))),
        ];
        let faults = Faults::parse(rules.iter().flatten().map(String::as_str), &topology).unwrap();
        let (schedule, geometry) = case.schedule(4);
        let job = Job {
            costs,
            sharing: sharing.into(),
            faults: &faults,
            window: case.window.unwrap_or(case.algorithm.window()),
            ..Job::new(&*schedule, &geometry, 4, &topology)
        };
        let outcome = traced(&job, &mut |_| {}).unwrap();
        let world = World::sim(&topology).costs(costs).sharing(sharing).faults(faults.clone());
        let inputs = inputs::<f32>(&case);
        let report = case
            .plan(world)
            .run_each(|comm: Communicator| call(&comm, &case, &inputs[comm.rank().index()]))
            .unwrap();
        for result in &report.ranks {
            prop_assert!(result.is_ok(), "{:?}", result);
        }
        prop_assert_eq!(report.finish, outcome.finish);
        prop_assert_eq!(report.event_hash, Some(outcome.event_hash));
    }
}

/// An all-reduce of 999 f32 over `ranks` ranks by one algorithm, cut in one way: rank 0's result as bits.
fn all_reduce_bits(ranks: u32, name: &str, segment: Option<u64>, parts: usize) -> Vec<u32> {
    let algorithm = registry::find(Collective::AllReduce, name).unwrap();
    let (op, root, seed) = (ReduceOp::Sum, Rank(0), 7);
    let case = Case { algorithm, ranks, count: 999, op, root, segment, window: None, seed };
    let inputs = inputs::<f32>(&case);
    let results = case.plan(World::threads(ranks)).run(|comm: Communicator| -> Result<_, Error> {
        let mut data = inputs[comm.rank().index()].clone();
        for bucket in data.chunks_mut(999 / parts) {
            comm.all_reduce(bucket, op)?;
        }
        Ok(data)
    });
    let results = results.unwrap();
    results.iter().for_each(|other| {
        assert_eq!(bytemuck::cast_slice::<_, u8>(other), bytemuck::cast_slice::<_, u8>(&results[0]))
    });
    results[0].iter().map(|x| x.to_bits()).collect()
}

#[test]
fn canonical_algorithms_agree_for_every_segment_and_bucket_and_a_ring_does_not() {
    let canonical = ["halving_doubling", "recursive_doubling", "direct", "binomial", "star"];
    for ranks in [5, 8] {
        let want = all_reduce_bits(ranks, canonical[0], None, 1);
        for name in canonical {
            for segment in [None, Some(4), Some(100), Some(1 << 20)] {
                for parts in [1, 3, 27] {
                    let got = all_reduce_bits(ranks, name, segment, parts);
                    assert_eq!(got, want, "{name} in segments of {segment:?}, {parts} buckets");
                }
            }
        }
        let ring = all_reduce_bits(ranks, "ring", None, 1);
        assert_ne!(ring, want, "a ring's order is another one");
        assert_ne!(all_reduce_bits(ranks, "ring", None, 3), ring, "and depends on the buckets");
        assert_eq!(all_reduce_bits(ranks, "ring", Some(12), 1), ring, "but not on the segments");
    }
}

#[test]
fn no_window_deadlocks_without_any_buffering() {
    let names = ["ring", "halving_doubling", "double_binary_tree", "chain", "direct", "hierarchical"];
    for window in 1..=64 {
        let name = names[window as usize % names.len()];
        let ranks = 2 + window % 7;
        let world = World::threads(ranks)
            .buffered(0)
            .window(window)
            .segment(64)
            .deadline(std::time::Duration::from_secs(300))
            .algorithm(Collective::AllReduce, name);
        let sums = world.run(|comm: Communicator| -> Result<_, Error> {
            let mut data = vec![u64::from(comm.rank().0) as i64; 300];
            comm.all_reduce(&mut data, ReduceOp::Sum).map(|()| data)
        });
        let want = i64::from(ranks * (ranks - 1) / 2);
        let sums = sums.unwrap_or_else(|error| panic!("{name}, window {window}: {error}"));
        assert!(sums.iter().flatten().all(|sum| *sum == want), "{name}, window {window}");
    }
}

/// A ring in which all ranks forget one send: with real data it would wait for ever.
struct Forgetful(u32);

impl Schedule for Forgetful {
    fn ranks(&self) -> u32 {
        self.0
    }
    fn chunks(&self) -> u32 {
        self.0
    }
    fn rounds(&self) -> u64 {
        RingAllReduce(self.0).rounds()
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let step = RingAllReduce(self.0).step(rank, round);
        if round == 3 { Step { send: None, ..step } } else { step }
    }
}

#[test]
fn what_is_wrong_is_said() {
    static FORGETFUL: Algorithm =
        Algorithm::new(Collective::AllReduce, "forgetful", "", |shape| Arc::new(Forgetful(shape.ranks())));
    let error = testing::conforms(&FORGETFUL).unwrap_err().to_string();
    let expected = "all_reduce by forgetful, 3 ranks: plain, root 0: rank 0, round 3, chunk 2: \
                    receives from rank 2, which sends nothing in this round";
    assert_eq!(error, expected);

    static NOT_THIS: Algorithm =
        Algorithm::new(Collective::AllGather, "not_this", "", |shape| Arc::new(halving(shape.ranks())));
    let error = testing::conforms(&NOT_THIS).unwrap_err().to_string();
    assert!(error.contains("reduces a chunk that holds no data"), "{error}");

    static SMALL: Algorithm =
        Algorithm::new(Collective::AllReduce, "small", "", |_| Arc::new(RingAllReduce(1)));
    let error = testing::conforms(&SMALL).unwrap_err().to_string();
    assert!(error.contains("all_reduce by small made a schedule for a group of 1, not of 2"), "{error}");
}

#[test]
fn every_algorithm_of_the_table_conforms() {
    for algorithm in registry::ALGORITHMS {
        testing::conforms(algorithm).unwrap();
    }
}

/// The samples depend on the order of additions: what a ring gives is not what the canonical order gives.
#[test]
fn the_order_of_a_sum_shows_in_the_samples() {
    let (dtype, op, count) = (DType::F32, ReduceOp::Sum, 29);
    let case =
        testing::Case { ranks: 7, root: Rank(0), count, dtype, op, segment: None, window: 1, buffered: 0 };
    let [ring, direct] = ["ring", "direct"].map(|name| {
        let algorithm = registry::find(Collective::AllReduce, name).unwrap();
        testing::Exact::<f32>::new(algorithm, &case).unwrap()
    });
    let world = World::threads(7).algorithm(Collective::AllReduce, "ring");
    let sums = world.run(|comm: Communicator| -> Result<_, Error> {
        let mut data = ring.inputs[comm.rank().index()].clone();
        comm.all_reduce(&mut data, op).map(|()| data)
    });
    let sums = sums.unwrap();
    ring.holds("threads", &sums).unwrap();
    assert!(direct.holds("threads", &sums).is_err());
}
