#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! No simulated time is below its bound, for 10,000 random machines, collectives and faults, with both ways to share links.
//!
//! Every engine compares its own result with bounds that it computes itself (`Error::BeatsBound`). This test computes the bounds
//! again, from the schedule's steps and the topology's routes alone, so that it also finds mistakes in the engines' own counts.
//! `BOUNDS_CASES=100000` runs a longer search.

use allfold_schedules::registry::{self, Algorithm, Shape};
use allfold_schedules::schedule::{Schedule, Segments};
use allfold_schedules::{Collective, Geometry, Rank};
use allfold_sim::catalogue::{DEVICE_LINK, NIC_LINK};
use allfold_sim::fault::Draw;
use allfold_sim::{BytesPerSec, Faults, Link, LinkId, Picos, Sharing, Topology};
use allfold_timing::{Engine, Error, Job, simulate};

struct Dice(u64, u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.1 += 1;
        Draw::of(self.0, &[self.1]).word(0) % end.max(1)
    }

    fn link(&mut self, like: Link) -> Link {
        let bandwidth = BytesPerSec(1 + like.bandwidth.0 * (1 + self.below(40)) / 20);
        Link { bandwidth, latency: Picos(self.below(3 * like.latency.0)) }
    }

    fn topology(&mut self, ranks: u32) -> Topology {
        let (device, nic) = (self.link(DEVICE_LINK), self.link(NIC_LINK));
        match self.below(6) {
            0 => Topology::switch(ranks, device),
            1 => Topology::ring(ranks, device),
            2 => Topology::mesh(ranks, device),
            3 => Topology::nodes(ranks, 2, 1, device, nic),
            4 => Topology::nodes(ranks, 4, 4, device, nic),
            _ => Topology::nodes(ranks, 8, 2, device, nic),
        }
        .unwrap()
    }

    /// The text of a random fault rule that delays but causes no failure.
    fn rule(&mut self, topology: &Topology) -> String {
        let rank = self.below(topology.ranks().into());
        let link = match topology.links() {
            0 => "*".into(),
            links => topology.link_name(LinkId(self.below(links.into()) as u32)),
        };
        let (n, until) = (1 + self.below(30), 40 + self.below(4000));
        match self.below(8) {
            0 => format!("slow_rank={rank}:x{n}"),
            1 => format!("slow_rank={rank}:x{n}@{n}us..{until}us"),
            2 => format!("slow_link={link}:x{n}@{n}us..{until}us"),
            3 => format!("slow_link={link}:x{n}+{n}us"),
            4 => format!("jitter_link={link}:exp({n}us)"),
            5 => format!("flap={link}:{n}us/{}us", n + until),
            6 => format!("stop_rank={rank}@{n}us..{until}us"),
            _ => format!("jitter_rank=*:pareto({n}us,1.5)"),
        }
    }
}

/// The larger of two bounds: the time of all bytes over each link, and the time of each message alone on its path.
fn least(schedule: &dyn Schedule, geometry: &Geometry, topology: &Topology) -> Picos {
    let mut over = vec![0u128; topology.links() as usize];
    let mut alone = 0;
    for rank in (0..schedule.ranks()).map(Rank) {
        let mut from = 0;
        while let Some(round) = schedule.next(rank, from) {
            from = round + 1;
            let Some((to, span)) = schedule.step(rank, round).send.filter(|(to, _)| *to != rank) else {
                continue;
            };
            let bytes = u128::from(geometry.elements(span)) * 4;
            let mut path: Vec<LinkId> = Vec::new();
            topology.route(rank, to, &mut path);
            let (mut latency, mut slowest) = (0, 0);
            for link in path {
                let Link { bandwidth, latency: flight } = topology.link(link);
                over[link.0 as usize] += bytes;
                latency += flight.0;
                slowest = slowest.max((bytes * 1_000_000_000_000 / u128::from(bandwidth.0)) as u64);
            }
            alone = alone.max(latency + slowest);
        }
    }
    let links = (0u32..).zip(over).map(|(link, bytes)| {
        (bytes * 1_000_000_000_000 / u128::from(topology.link(LinkId(link)).bandwidth.0)) as u64
    });
    Picos(links.max().unwrap_or(0).max(alone))
}

#[test]
fn no_result_beats_its_bound_on_ten_thousand_machines_with_faults() {
    let cases: u64 =
        std::env::var("BOUNDS_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(10_000);
    let all: Vec<&'static Algorithm> = Collective::ALL.into_iter().flat_map(registry::of).collect();
    let (mut tight, mut faulty) = (0, 0);
    for seed in 0..cases {
        let mut dice = Dice(seed, 0);
        let ranks = 1 + dice.below(12) as u32;
        let topology = dice.topology(ranks);
        let algorithm = all[dice.below(all.len() as u64) as usize];
        let pieces = 1 + dice.below(6) as u32;
        let schedule = Segments::new(algorithm.build(Shape::new(ranks).unwrap()).unwrap(), pieces);
        let most = dice.below(22);
        let count = dice.below(1 << most);
        let geometry = match algorithm.collective.blocked() {
            true => Geometry::blocked(&schedule, count / u64::from(ranks)),
            false => Geometry::whole(&schedule, count),
        };
        let texts: Vec<String> = (0..dice.below(3)).map(|_| dice.rule(&topology)).collect();
        let faults = Faults::parse(texts.iter().map(String::as_str), &topology).unwrap().seeded(seed);
        let bound = least(&schedule, &geometry, &topology);
        let window = [1, 2, 16][dice.below(3) as usize];
        for sharing in [Sharing::Split, Sharing::MaxMin] {
            let job = Job {
                window,
                sharing: sharing.into(),
                faults: &faults,
                collective: Some(algorithm.collective),
                ..Job::new(&schedule, &geometry, 4, &topology)
            };
            let what =
                || format!("case {seed}: {algorithm:?}, {ranks} ranks of {}, {texts:?}", topology.name());
            let outcome = match simulate(&job, Engine::Auto) {
                Ok(outcome) => outcome,
                // The fault rules only delay, so every error of the simulator is a bug.
                Err(error @ Error::BeatsBound { .. }) => panic!("{}: {error}", what()),
                Err(error) => panic!("{}: {error}", what()),
            };
            assert!(outcome.time >= bound, "{}: {} beats {bound}", what(), outcome.time);
            assert!(outcome.time >= outcome.bounds.greatest().0, "{}", what());
            tight += u64::from(outcome.time.0 <= bound.0 + bound.0 / 2 && bound.0 > 0);
            faulty += u64::from(!texts.is_empty());
        }
    }
    // The test would show little if no time were near its bound or no case had faults.
    assert!(
        tight > cases / 50 && faulty > cases,
        "{tight} near their bound, {faulty} with faults, of {cases}"
    );
}
