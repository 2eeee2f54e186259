//! Tests of the event engine on programs with known times, and on wrong programs.

use super::*;
use crate::{AllRanks, Engine, simulate};
use allfold_schedules::Geometry;
use allfold_schedules::algorithms::RingAllReduce;
use allfold_schedules::schedule::Schedule;
use allfold_schedules::schedule::{Combine, Rank, Span, Step};
use allfold_sim::{BytesPerSec, Costs, Faults, Link, Picos, Rounding, Sharing, Topology};

/// A schedule with explicit steps, by round and rank.
struct Steps {
    ranks: u32,
    chunks: u32,
    rounds: Vec<Vec<(u32, Step)>>,
}

impl Schedule for Steps {
    fn ranks(&self) -> u32 {
        self.ranks
    }
    fn chunks(&self) -> u32 {
        self.chunks
    }
    fn rounds(&self) -> u64 {
        self.rounds.len() as u64
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let steps = &self.rounds[round as usize];
        steps.iter().find(|(who, _)| *who == rank.0).map_or(Step::IDLE, |(_, step)| *step)
    }
}

fn send(to: u32, chunk: u32) -> Step {
    Step { send: Some((Rank(to), Span::data(chunk, 1))), recv: None }
}

fn recv(from: u32, chunk: u32, combine: Combine) -> Step {
    Step { send: None, recv: Some((Rank(from), Span::data(chunk, 1), combine)) }
}

const LINK: Link = Link { bandwidth: BytesPerSec(1_000_000_000), latency: Picos(500_000) };
static NOTHING: Faults = Faults::NONE;
const US: u64 = 1_000_000;

fn time_of(schedule: &dyn Schedule, window: u32, costs: Costs, bytes: u64) -> Result<Run, Error> {
    timed(schedule, &Geometry::whole(schedule, bytes), window, costs)
}

fn timed(schedule: &dyn Schedule, geometry: &Geometry, window: u32, costs: Costs) -> Result<Run, Error> {
    let topology = Topology::switch(schedule.ranks(), LINK).unwrap();
    let job = Job { window, costs, ..Job::new(schedule, geometry, 1, &topology) };
    run(&job, &AllRanks::of(&topology, &NOTHING), None)
}

fn micros(run: &Run) -> Vec<u64> {
    run.finish.iter().map(|finish| finish.0 / US).collect()
}

#[test]
fn a_message_takes_overhead_bytes_latency_and_reduction() {
    let one =
        Steps { ranks: 2, chunks: 1, rounds: vec![vec![(0, send(1, 0)), (1, recv(0, 0, Combine::Reduce))]] };
    let memory = Some(BytesPerSec(3_000_000_000));
    let costs = Costs { overhead: Picos(2 * US), launch: Picos(5 * US), memory, ..Costs::FREE };
    let run = time_of(&one, 1, costs, 1_000).unwrap();
    // The message has left after 5 (launch) + 2 (overhead) + 1 (bytes) us. Then follow 2 x 0.5 us of latency and 3 passes of 1/3
    // us.
    assert_eq!(run.finish, [Picos(8 * US), Picos(10 * US + 2)]);
    assert_eq!((run.chain, run.messages, run.bytes), (Picos(8 * US), 1, 1_000));
    assert_eq!(run.links, [1_000, 0, 0, 1_000]);
}

#[test]
fn messages_of_a_channel_follow_at_full_rate_within_the_window() {
    let four = |chunk| vec![(0, send(1, chunk)), (1, recv(0, chunk, Combine::Copy))];
    let pipeline = Steps { ranks: 2, chunks: 4, rounds: (0..4).map(four).collect() };
    // With a window of 1, the receiver's next step waits for the arrival; with a window of 4, only the last message adds its
    // latency.
    assert_eq!(micros(&time_of(&pipeline, 1, Costs::FREE, 4_000).unwrap()), [7, 8]);
    assert_eq!(micros(&time_of(&pipeline, 4, Costs::FREE, 4_000).unwrap()), [4, 5]);
}

#[test]
fn a_step_waits_for_conflicting_steps_only() {
    // Rank 1 receives chunk 0 and sends it on; it also sends chunk 1, which does not wait for chunk 0.
    let rounds = vec![
        vec![(0, send(1, 0)), (1, recv(0, 0, Combine::Copy))],
        vec![(1, send(2, 0)), (2, recv(1, 0, Combine::Copy))],
        vec![(1, send(3, 1)), (3, recv(1, 1, Combine::Copy))],
    ];
    let steps = Steps { ranks: 4, chunks: 2, rounds };
    assert_eq!(micros(&time_of(&steps, 3, Costs::FREE, 2_000).unwrap()), [1, 3, 4, 2]);
    assert_eq!(micros(&time_of(&steps, 1, Costs::FREE, 2_000).unwrap()), [1, 4, 4, 5]);
}

#[test]
fn two_senders_to_one_rank_share_its_port() {
    let both = vec![
        vec![(0, send(2, 0)), (2, recv(0, 0, Combine::Copy))],
        vec![(1, send(2, 1)), (2, recv(1, 1, Combine::Copy))],
    ];
    let steps = Steps { ranks: 3, chunks: 2, rounds: both };
    assert_eq!(micros(&time_of(&steps, 2, Costs::FREE, 2_000).unwrap()), [2, 2, 3]);
}

#[test]
fn a_step_of_one_rank_takes_its_memory_only() {
    let own = Step {
        send: Some((Rank(0), Span::data(0, 1))),
        recv: Some((Rank(0), Span::data(1, 1), Combine::Copy)),
    };
    let steps = Steps { ranks: 1, chunks: 2, rounds: vec![vec![(0, own)]] };
    let costs = Costs { memory: Some(BytesPerSec(1_000_000_000)), ..Costs::FREE };
    assert_eq!(micros(&time_of(&steps, 1, costs, 2_000).unwrap()), [2]);
}

#[test]
fn an_exchange_of_no_bytes_takes_its_latency() {
    let run = time_of(&RingAllReduce(4), 1, Costs::FREE, 0).unwrap();
    assert_eq!(micros(&run), [6; 4]);
    assert_eq!(run.chain, Picos(6 * US));
}

#[test]
fn unmatched_messages_are_errors_with_rank_and_round() {
    let lost = Steps { ranks: 2, chunks: 1, rounds: vec![vec![], vec![(0, send(1, 0))]] };
    let error = time_of(&lost, 1, Costs::FREE, 8).unwrap_err();
    assert_eq!(error, Error::Deadlock { rank: Rank(0), round: 1, what: "rank 1 to receive".into() });
    let waits = Steps { ranks: 2, chunks: 1, rounds: vec![vec![(1, recv(0, 0, Combine::Copy))]] };
    let error = time_of(&waits, 4, Costs::FREE, 8).unwrap_err();
    assert_eq!(error, Error::Deadlock { rank: Rank(1), round: 0, what: "a message from rank 0".into() });
    let uneven =
        Steps { ranks: 2, chunks: 3, rounds: vec![vec![(0, send(1, 0)), (1, recv(0, 2, Combine::Copy))]] };
    let error = time_of(&uneven, 1, Costs::FREE, 8).unwrap_err().to_string();
    assert!(error.contains("rank 0 sends 3 bytes that rank 1 receives in round 0 as 2 bytes"), "{error}");
    let nobody = Steps { ranks: 2, chunks: 1, rounds: vec![vec![(0, send(7, 0))]] };
    assert!(matches!(time_of(&nobody, 1, Costs::FREE, 8), Err(Error::Unmatched { rank: Rank(0), .. })));
}

#[test]
fn agrees_with_clocks_to_the_picosecond_where_no_link_is_shared() {
    for (ranks, bytes) in [(2, 1_000), (5, 12_345), (16, 0), (33, 1 << 20)] {
        for name in ["switch", "ring", "mesh", "nodes8", "nodes4"] {
            let topology = Topology::named(name, ranks).unwrap();
            let ring = RingAllReduce(ranks);
            let geometry = Geometry::whole(&ring, bytes);
            let memory = Some(BytesPerSec(2_000_000_000_000));
            let exact = Costs { overhead: Picos(123), memory, ..Costs::default() };
            let whole = Costs { rounding: Rounding::WholeNanos, overhead: Picos(10_000), ..exact };
            for (sharing, costs) in
                [(Sharing::Split, exact), (Sharing::MaxMin, exact), (Sharing::Split, whole)]
            {
                let job = Job { costs, sharing: sharing.into(), ..Job::new(&ring, &geometry, 1, &topology) };
                let all_ranks = AllRanks::of(&topology, &NOTHING);
                let events = run(&job, &all_ranks, None).unwrap();
                let clocks = simulate(&job, Engine::Full).unwrap();
                let found = (&events.finish, events.messages, events.bytes, events.chain, events.hash);
                let expected = (&clocks.finish, clocks.messages, clocks.bytes.0, clocks.bounds.chain);
                assert_eq!(found, (expected.0, expected.1, expected.2, expected.3, clocks.event_hash));
                assert_eq!(events.links, clocks.links.iter().map(|bytes| bytes.0).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn every_algorithm_ends_in_every_window_and_cut() {
    use allfold_schedules::registry::{ALGORITHMS, Shape};
    use allfold_schedules::schedule::Segments;
    for row in ALGORITHMS {
        for ranks in [1, 2, 3, 5, 8, 12, 17] {
            for (segments, window) in [(1, 1), (1, 7), (5, 1), (4, 16), (9, 128)] {
                let built = Segments::new(row.build(Shape::new(ranks).unwrap()).unwrap(), segments);
                let geometry = match row.collective.blocked() {
                    true => Geometry::blocked(&built, 1_001),
                    false => Geometry::whole(&built, 10_000),
                };
                let done = timed(&built, &geometry, window, Costs::FREE);
                assert!(
                    done.is_ok(),
                    "{} {} {ranks} {segments} {window}: {done:?}",
                    row.collective,
                    row.name
                );
            }
        }
    }
}

#[test]
fn a_ring_drawn_as_a_graph_takes_the_time_of_the_built_in_one() {
    let edge = |from, to| allfold_sim::topology::Edge { from, to, link: LINK };
    let edges = (0..7).flat_map(|r| [edge(r, (r + 1) % 7), edge((r + 1) % 7, r)]).collect();
    let (ring, faults) = (RingAllReduce(7), Faults::NONE);
    let geometry = Geometry::whole(&ring, 7_000);
    let time = |topology: &Topology, engine| {
        let job = Job { faults: &faults, costs: Costs::FREE, ..Job::new(&ring, &geometry, 1, topology) };
        simulate(&job, engine).unwrap().time
    };
    let (drawn, built) = (Topology::graph(7, &[], edges).unwrap(), Topology::ring(7, LINK).unwrap());
    assert_eq!(time(&drawn, Engine::Full), time(&built, Engine::Full));
    assert_eq!(time(&drawn, Engine::Auto), Picos(12 * 3 * US / 2));
}

mod skipping {
    use super::*;
    use allfold_schedules::algorithms::{BinaryTree, Chain, double_binary_tree};
    use allfold_schedules::schedule::{Segments, then_reverse};
    use proptest::prelude::*;

    /// The outcomes with and without skipping, and the number of periods that were skipped.
    fn both(
        schedule: &dyn Schedule,
        topology: &Topology,
        window: u32,
        bytes: u64,
        sharing: Sharing,
    ) -> (Run, Run, u64) {
        let geometry = Geometry::whole(schedule, bytes);
        let memory = Some(BytesPerSec(3_000_000_000));
        let costs = Costs { overhead: Picos(1_000), memory, ..Costs::FREE };
        let job =
            Job { window, costs, sharing: sharing.into(), ..Job::new(schedule, &geometry, 1, topology) };
        let all_ranks = AllRanks::of(topology, &NOTHING);
        let timed = |skipping: bool| {
            let mut events = Events::new(&job, &all_ranks, None).unwrap();
            let skip = if skipping { Skip::new(&events) } else { None };
            let skip = run_to_end(&mut events, skip).unwrap();
            (events.finish().unwrap(), skip.map_or(0, |skip| skip.periods))
        };
        let ((skipped, periods), (stepped, _)) = (timed(true), timed(false));
        (skipped, stepped, periods)
    }

    fn same(skipped: &Run, stepped: &Run) {
        let found = |run: &Run| (run.finish.clone(), run.messages, run.bytes, run.links.clone());
        assert_eq!(found(skipped), found(stepped));
        assert!(skipped.chain <= stepped.chain);
    }

    #[test]
    fn a_long_pipeline_is_skipped_and_ends_at_the_same_picosecond() {
        let topology = Topology::switch(6, LINK).unwrap();
        // The first size gives 1,000 pieces of 1,000 bytes; with the second, the first 500 pieces have 1,001 bytes.
        for bytes in [1_000_000, 1_000_500] {
            let chain = Segments::new(Chain { ranks: 6, root: Rank(0) }, 1_000);
            let (skipped, stepped, periods) = both(&chain, &topology, 8, bytes, Sharing::Split);
            same(&skipped, &stepped);
            assert!(periods > 100, "{periods} periods skipped");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn skipping_never_changes_a_time(
            kind in 0..4, ranks in 2u32..12, pieces in 9u32..300, window in 1u32..40, bytes in 0u64..100_000, name in 0..3, max_min: bool
        ) {
            let topology = Topology::named(["switch", "ring", "nodes4x1"][name as usize], ranks).unwrap();
            let sharing = if max_min { Sharing::MaxMin } else { Sharing::Split };
            let root = Rank(0);
            let (skipped, stepped, _) = match kind {
                0 => both(&Segments::new(Chain { ranks, root }, pieces), &topology, window, bytes, sharing),
                1 => both(&Segments::new(then_reverse(BinaryTree::new(ranks, root)), pieces), &topology, window, bytes, sharing),
                2 => both(&Segments::new(double_binary_tree(ranks, root, then_reverse), pieces), &topology, window, bytes, sharing),
                _ => both(&Segments::with_stride(RingAllReduce(ranks), pieces, 2), &topology, window, bytes, sharing),
            };
            same(&skipped, &stepped);
        }
    }
}
