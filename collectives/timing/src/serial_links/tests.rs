//! Compares the sweep over serial links with a plain implementation of its rule, with clocks if no link is shared, and with itself
//! without skipping.

use super::*;
use crate::{Engine, LinkSharing, simulate};
use allfold_schedules::algorithms::{BinaryTree, Chain, RingAllReduce, double_binary_tree, halving_doubling};
use allfold_schedules::schedule::{
    Combine, Lanes, Rank, Reverse, Schedule, Segments, Span, Step, then_reverse,
};
use allfold_schedules::{Collective, Geometry};
use allfold_sim::{Bytes, BytesPerSec, Costs, Faults, Link, LinkId, Topology};
use proptest::prelude::*;
use std::sync::Arc;

/// Times a job whose links serve one message at a time.
fn serial(job: &Job<'_>) -> Result<Outcome, Error> {
    simulate(&Job { sharing: LinkSharing::Serial, ..*job }, Engine::Auto)
}

/// A plain implementation of the rule of serial links: stores every step of every rank, and compares each step with all earlier steps.
struct Plain<'a> {
    job: Job<'a>,
    /// For each rank: its steps, with the time at which each was done.
    steps: Vec<Vec<(u64, Step)>>,
    free: Vec<u64>,
}

impl Plain<'_> {
    fn finish(job: Job<'_>) -> Vec<u64> {
        let (ranks, rounds) = (job.schedule.ranks(), job.schedule.rounds());
        let free = vec![0; job.topology.links() as usize];
        let mut plain = Plain { job, steps: vec![Vec::new(); ranks as usize], free };
        (0..rounds).for_each(|round| plain.round(round));
        let done = |steps: &Vec<(u64, Step)>| steps.iter().map(|step| step.0).max();
        plain.steps.iter().map(|steps| done(steps).unwrap_or(job.launched(Rank(0)).0)).collect()
    }

    fn round(&mut self, round: u64) {
        let job = self.job;
        let ranks = || (0..job.schedule.ranks()).map(Rank);
        let step = |rank: Rank| job.schedule.step(rank, round);
        let posted: Vec<u64> = ranks().map(|rank| self.posted(rank, &step(rank))).collect();
        let mut ends = posted.clone();
        for to in ranks() {
            let Some((from, span, how)) = step(to).recv else { continue };
            let bytes = Bytes(job.geometry.elements(span) * u64::from(job.element));
            let reduces = how == Combine::Reduce;
            if from == to {
                ends[to.index()] += job.costs.local(bytes, reduces).0;
                continue;
            }
            let mut path: Vec<LinkId> = Vec::new();
            job.topology.route(from, to, &mut path);
            let links = || path.iter().map(|link| job.topology.link(*link));
            let overhead = job.costs.overhead.0;
            let free = path.iter().map(|link| self.free[link.0 as usize]).max().unwrap_or(0);
            let flow = free.max(posted[from.index()].max(posted[to.index()]) + overhead);
            let left = flow + links().map(|link| link.bandwidth.time(bytes).0).max().unwrap_or(0);
            let latency: u64 = links().map(|link| link.latency.0).sum();
            let combined = if reduces { job.costs.reduce(bytes).0 } else { 0 };
            path.iter().for_each(|link| self.free[link.0 as usize] = left);
            ends[from.index()] = ends[from.index()].max(left);
            ends[to.index()] = ends[to.index()].max(left + latency + combined);
        }
        for rank in ranks().filter(|rank| !step(*rank).is_idle()) {
            self.steps[rank.index()].push((ends[rank.index()], step(rank)));
        }
    }

    fn posted(&self, rank: Rank, step: &Step) -> u64 {
        let before = &self.steps[rank.index()];
        let outside = (before.len() + 1).saturating_sub(self.job.window as usize);
        let spans = |step: &Step| (step.send.map(|s| s.1), step.recv.map(|r| r.1));
        let meet = |a: Option<Span>, b: Option<Span>| {
            a.zip(b).is_some_and(|(a, b)| {
                a.segment == b.segment
                    && a.region == b.region
                    && a.first_chunk < b.first_chunk + b.chunks
                    && b.first_chunk < a.first_chunk + a.chunks
            })
        };
        let conflict = |other: &Step| {
            let ((read, write), (reads, writes)) = (spans(step), spans(other));
            meet(write, reads) || meet(write, writes) || meet(read, writes)
        };
        let waits = before.iter().enumerate().filter(|(i, (_, other))| *i < outside || conflict(other));
        waits.map(|(_, (done, _))| *done).max().unwrap_or(0).max(self.job.launched(rank).0)
    }
}

fn schedule(kind: usize, ranks: u32, pieces: u32) -> Segments<Arc<dyn Schedule>> {
    let root = Rank(0);
    let of: Arc<dyn Schedule> = match kind {
        0 => Arc::new(Chain { ranks, root }),
        1 => Arc::new(then_reverse(BinaryTree::new(ranks, root))),
        2 => Arc::new(double_binary_tree(ranks, root, then_reverse)),
        3 => Arc::new(double_binary_tree(ranks, root, Reverse)),
        _ => Arc::new(RingAllReduce(ranks)),
    };
    let stride = of.stride().max(1);
    Segments::with_stride(of, pieces, stride)
}

const COSTS: Costs =
    Costs { overhead: Picos(70_000), memory: Some(BytesPerSec(900_000_000_000)), ..Costs::FREE };
const WIRINGS: [&str; 5] = ["switch", "ring", "mesh", "nodes4", "nodes4x2"];
static NOTHING: Faults = Faults::NONE;

/// The steps of a program, as a schedule.
struct Retimed<'a> {
    of: &'a dyn Schedule,
    acts: acts::Acts,
    stride: u64,
}

impl Schedule for Retimed<'_> {
    fn ranks(&self) -> u32 {
        self.of.ranks()
    }
    fn chunks(&self) -> u32 {
        self.of.chunks()
    }
    fn rounds(&self) -> u64 {
        self.acts.len() as u64
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let acts = &self.acts[round as usize];
        acts.iter()
            .find(|(representative, _)| *representative == rank.0)
            .map_or(Step::IDLE, |(_, step)| *step)
    }
    fn stride(&self) -> u64 {
        self.stride
    }
    fn owner(&self, chunk: u32) -> Rank {
        self.of.owner(chunk)
    }
}

/// A job's pipeline, with the steps of each piece in the rounds of its timetable.
fn retimed<'a>(job: &Job<'a>) -> Segments<Retimed<'a>> {
    let pipeline = job.schedule.pipeline().unwrap();
    let (of, stride) = (pipeline.of, (pipeline.lap - 1) / pipeline.pieces);
    let all_ranks = AllRanks::of(job.topology, &NOTHING);
    let acts = acts::acts(of, &all_ranks).unwrap();
    let own = Program::laid_out(job, &all_ranks, &acts, pipeline.pieces, stride).unwrap();
    let table =
        timetable::retimed(&own, &acts, job.topology.links() as usize).filter(|_| pipeline.pieces > 1);
    let (acts, stride) = table.unwrap_or((acts, stride));
    Segments::with_stride(Retimed { of, acts, stride }, pipeline.pieces as u32, stride)
}

fn run_of(job: &Job<'_>, skip: bool) -> Run {
    timed(job, &AllRanks::of(job.topology, &NOTHING), skip).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn the_sweep_follows_the_rule(
        kind in 0usize..5, ranks in 1u32..14, pieces in 1u32..24, window in 1u32..40, bytes in 0u64..3_000_000, wiring in 0usize..5,
    ) {
        let schedule = schedule(kind, ranks, pieces);
        let topology = Topology::named(WIRINGS[wiring], ranks).unwrap();
        let geometry = Geometry::whole(&schedule, bytes);
        let job = Job { window, costs: COSTS, ..Job::new(&schedule, &geometry, 1, &topology) };
        let found: Vec<u64> = run_of(&job, true).finish.iter().map(|finish| finish.0).collect();
        let table = retimed(&job);
        prop_assert_eq!(found, Plain::finish(Job { schedule: &table, ..job }));
        let collective = [None, Some(Collective::AllReduce), Some(Collective::AllReduce), Some(Collective::Broadcast)];
        if let Some(collective) = collective.get(kind).copied().flatten() {
            prop_assert!(allfold_schedules::check::check(&table, collective, Rank(0)).is_ok());
        }
    }

    #[test]
    fn skipping_never_changes_a_time(
        kind in 0usize..5, ranks in 2u32..40, pieces in 9u32..400, window in 1u32..80, bytes in 0u64..30_000_000, equal: bool,
        wiring in 0usize..5,
    ) {
        let schedule = schedule(kind, ranks, pieces);
        let topology = Topology::named(WIRINGS[wiring], ranks).unwrap();
        let whole = u64::from(schedule.chunks() * pieces);
        let geometry = Geometry::whole(&schedule, if equal { bytes / whole * whole } else { bytes });
        let job = Job { window, costs: COSTS, ..Job::new(&schedule, &geometry, 1, &topology) };
        let (skipped, stepped) = (run_of(&job, true), run_of(&job, false));
        prop_assert_eq!(stepped.skipped, 0);
        let found = |run: &Run| (run.finish.clone(), run.messages, run.bytes, run.links.clone(), run.chain, run.hash);
        prop_assert_eq!(found(&skipped), found(&stepped));
    }

    #[test]
    fn without_shared_links_times_equal_those_of_clocks(
        kind in 0usize..2, ranks in 1u32..20, pieces in 1u32..12, bytes in 0u64..1_000_000, wiring in 0usize..3,
    ) {
        let topology = Topology::named(["switch", "mesh", "nodes4"][wiring], ranks).unwrap();
        let of: Arc<dyn Schedule> =
            if kind == 0 { Arc::new(RingAllReduce(ranks)) } else { Arc::new(halving_doubling(ranks)) };
        let schedule = Segments::with_stride(of, pieces, 1);
        let geometry = Geometry::whole(&schedule, bytes);
        let job = Job { costs: COSTS, ..Job::new(&schedule, &geometry, 1, &topology) };
        let full = simulate(&job, Engine::Full).unwrap();
        prop_assume!(full.method == Method::Clocks);
        let timed = serial(&job).unwrap();
        let found = |outcome: &Outcome| (outcome.finish.clone(), outcome.messages, outcome.bytes, outcome.links.clone());
        prop_assert_eq!(found(&timed), found(&full));
    }

    #[test]
    fn lanes_that_are_alike_take_the_time_of_one_on_thinner_links(
        kind in 1usize..3, ranks in 2u32..20, pieces in 1u32..40, lanes in 2u32..17, window in 1u32..20,
    ) {
        let each = |bandwidth: u64| Link { bandwidth: BytesPerSec(bandwidth), latency: Picos(600_000) };
        let one = schedule(kind, ranks, pieces);
        let count = u64::from(one.chunks() * pieces) * 10_000;
        let all = Lanes::split(one.clone(), lanes as usize);
        let (geometry, geometries) = (Geometry::whole(&one, count), Geometry::whole(&all, count * u64::from(lanes)));
        let thin = Topology::switch(ranks, each(1_000_000_000)).unwrap();
        let thick = Topology::switch(ranks, each(1_000_000_000 * u64::from(lanes))).unwrap();
        let one = Job { window, costs: COSTS, ..Job::new(&one, &geometry, 1, &thin) };
        let collective = Some(Collective::AllReduce);
        let all = Job { window: window * lanes, costs: COSTS, collective, ..Job::new(&all, &geometries, 1, &thick) };
        let (one, all) = (serial(&one).unwrap(), serial(&all).unwrap());
        prop_assert_eq!(all.folded, lanes);
        prop_assert_eq!((one.finish, one.messages * u64::from(lanes)), (all.finish, all.messages));
    }
}

#[test]
fn a_long_pipeline_is_mostly_skipped() {
    let schedule = schedule(2, 64, 2_000);
    let topology = Topology::named("nodes8", 64).unwrap();
    let geometry = Geometry::whole(&schedule, 2 * 2_000 * 65_536);
    let job = Job { window: 64, ..Job::new(&schedule, &geometry, 1, &topology) };
    let run = run_of(&job, true);
    assert!(run.skipped * 10 > run.messages * 9, "{} of {} messages skipped", run.skipped, run.messages);
}

/// The cases include pieces whose bytes take long compared with the latency, and pieces whose bytes do not.
#[test]
fn trees_take_nearly_the_time_that_they_take_on_shared_links() {
    let cases = [
        ("switch", 64, 1 << 29),
        ("nodes8", 48, 1 << 28),
        ("nodes8x2", 32, 1 << 28),
        ("nodes8", 64, 1 << 25),
    ];
    for (wiring, ranks, bytes) in cases {
        let schedule = schedule(2, ranks, 128);
        let topology = Topology::named(wiring, ranks).unwrap();
        let geometry = Geometry::whole(&schedule, bytes);
        let job = Job { window: 64, ..Job::new(&schedule, &geometry, 1, &topology) };
        let (serial, shares) = (serial(&job).unwrap(), simulate(&job, Engine::Full).unwrap());
        let (serial, shares) = (serial.time.as_micros(), shares.time.as_micros());
        println!("{wiring}, {ranks} ranks: {serial} us one by one, {shares} us by shares");
        assert!(
            (0.85..1.1).contains(&(serial / shares)),
            "{wiring}, {ranks} ranks: {serial} us, {shares} us by shares"
        );
    }
}

#[test]
fn jobs_that_serial_links_cannot_time_are_refused() {
    let topology = Topology::named("switch", 4).unwrap();
    let round_by_round = Segments::with_stride(RingAllReduce(4), 3, 0);
    let geometry = Geometry::whole(&round_by_round, 100);
    let error = serial(&Job::new(&round_by_round, &geometry, 1, &topology)).unwrap_err();
    assert!(error.to_string().contains("constant stride"), "{error}");
    let (long, topology_of_many) = (RingAllReduce(200), Topology::named("switch", 200).unwrap());
    let geometry = Geometry::whole(&long, 400);
    let error = serial(&Job::new(&long, &geometry, 1, &topology_of_many)).unwrap_err();
    assert!(error.to_string().contains("too many steps"), "{error}");
    let (ring, faults) = (RingAllReduce(4), Faults::parse(["dead_rank=1@1ms"], &topology).unwrap());
    let geometry = Geometry::whole(&ring, 100);
    let job = Job { faults: &faults, ..Job::new(&ring, &geometry, 1, &topology) };
    assert!(serial(&job).unwrap_err().to_string().contains("share them"));
}

#[test]
fn serial_links_are_refused_by_engines_that_share_links() {
    let topology = Topology::named("switch", 4).unwrap();
    let ring = Segments::with_stride(RingAllReduce(4), 3, 1);
    let geometry = Geometry::whole(&ring, 120);
    let job = Job { sharing: LinkSharing::Serial, ..Job::new(&ring, &geometry, 1, &topology) };
    for engine in [Engine::Auto, Engine::Full] {
        assert_eq!(simulate(&job, engine).unwrap().method, Method::SerialLinks, "{engine:?}");
    }
    let refused = "serial_links: links that serve one message at a time are timed by engine `auto` or `full`";
    for engine in [Engine::Events, Engine::BySymmetry, Engine::BySymmetryRounded] {
        let error = simulate(&job, engine).unwrap_err().to_string();
        assert!(error.contains(refused), "{engine:?}: {error}");
    }
    assert!(crate::explain(&job).unwrap_err().to_string().contains(refused));
}
