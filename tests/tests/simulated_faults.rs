#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! The effect of fault rules on simulated time, and the culprits that errors name.

use allfold_collectives::registry::{self, Shape};
use allfold_collectives::schedule::{Schedule, Segments};
use allfold_collectives::time::{Cause, Culprit, Engine, Error, Failure, Job, simulate};
use allfold_collectives::{Collective, Geometry, Rank};
use allfold_sim::{Faults, Picos, Sharing, Topology};
use std::sync::Arc;

/// 1 MB by a ring over four ranks of one switch: 6 rounds of 250 kB, 833 ns each, 1.2 us of latency, 6.6 us of launch.
fn ring(rules: &[&str]) -> Result<Picos, Error> {
    timed("ring", 1, 1, rules)
}

fn timed(algorithm: &str, pieces: u32, window: u32, rules: &[&str]) -> Result<Picos, Error> {
    let topology = Topology::named("switch", 4).unwrap();
    let row = registry::find(Collective::AllReduce, algorithm).unwrap();
    let schedule: Arc<dyn Schedule> = row.build(Shape::new(4).unwrap()).unwrap();
    let schedule = Segments::new(schedule, pieces);
    let geometry = Geometry::whole(&schedule, 250_000);
    let faults = Faults::parse(rules.iter().copied(), &topology).unwrap().seeded(1);
    let mut times = [Sharing::Split, Sharing::MaxMin].map(|sharing| {
        let job = Job {
            faults: &faults,
            sharing: sharing.into(),
            window,
            deadline: Some(Picos::from_micros(10_000)),
            ..Job::new(&schedule, &geometry, 4, &topology)
        };
        simulate(&job, Engine::Auto).map(|outcome| outcome.time)
    });
    assert_eq!(times[0], times[1]);
    std::mem::replace(&mut times[0], Ok(Picos::ZERO))
}

fn failure(rules: &[&str]) -> Failure {
    let failures: Vec<Failure> = [("ring", 1, 1), ("double_binary_tree", 10, 8)]
        .map(|(algorithm, pieces, window)| match timed(algorithm, pieces, window, rules) {
            Err(Error::Fault(failure)) => *failure,
            other => panic!("{rules:?} gives {other:?}"),
        })
        .into();
    assert_eq!((failures[0].culprit, failures[0].cause), (failures[1].culprit, failures[1].cause));
    failures[0].clone()
}

#[test]
fn an_outage_costs_exactly_its_length() {
    let whole = ring(&[]).unwrap();
    // The first message is under way from 6.6 us on.
    let ten = Picos::from_micros(10);
    for rule in ["partition=2|0,1,3@7us..17us", "cut=2>3@7us..17us", "stop_rank=2@7us..17us"] {
        assert_eq!(ring(&[rule]).unwrap(), whole + ten, "{rule}");
    }
    // Down for 10 us of every 17 us: from 7 us to 17 us, and then the rule is over.
    assert_eq!(ring(&["flap=up[2]:10us/17us@0ps..20us"]).unwrap(), whole + ten);
}

#[test]
fn a_rank_that_is_slow_for_a_while_is_late_by_what_it_lost() {
    let whole = ring(&[]).unwrap();
    // 6.6 us of launch; from 2 us on at half the pace.
    assert_eq!(ring(&["slow_rank=1:x2@2us..4us"]).unwrap(), whole + Picos::from_micros(1));
    assert_eq!(ring(&["jitter_rank=1:+3us"]).unwrap(), whole + Picos::from_micros(3));
    assert_eq!(ring(&["stop_rank=1@1us..2us"]).unwrap(), whole + Picos::from_micros(1));
}

#[test]
fn a_late_message_delays_those_who_need_it() {
    let whole = ring(&[]).unwrap();
    assert_eq!(ring(&["delay=0>1:#1:+5us"]).unwrap(), whole + Picos::from_micros(5));
    assert_eq!(ring(&["reorder=0>1:#2:+5us"]).unwrap(), whole + Picos::from_micros(5));
    assert_eq!(
        ring(&["jitter_link=up[0]:+1us"]).unwrap(),
        whole + Picos::from_micros(6),
        "each of six rounds"
    );
    // A duplicate of 250 kB occupies its channel for 833,334 ps, less than the latency that the next message waits for anyway.
    assert_eq!(ring(&["duplicate=0>1:#2"]).unwrap(), whole);
    assert_eq!(ring(&["delay=3>0:all:+0us"]).unwrap(), whole);
}

#[test]
fn what_kills_is_named_with_its_round_and_its_cause() {
    let path = |from, to| Culprit::Path { from: Rank(from), to: Rank(to) };
    let lost = failure(&["drop=0>1:#1"]);
    assert_eq!((lost.culprit, lost.cause), (path(0, 1), Cause::Lost));
    assert_eq!((lost.told, lost.at), (Rank(1), Some(Picos::from_micros(10_000))));
    let partitioned = failure(&["cut=0>1"]);
    assert_eq!((partitioned.culprit, partitioned.cause), (path(0, 1), Cause::Partitioned));
    let damaged = failure(&["corrupt=0>1:#1"]);
    assert_eq!((damaged.culprit, damaged.cause, damaged.told), (path(0, 1), Cause::Corrupted, Rank(1)));
    assert!(damaged.at < Some(Picos::from_micros(100)), "told when it arrives");
    let dead = failure(&["dead_rank=2@7us"]);
    assert_eq!((dead.culprit, dead.cause), (Culprit::Rank(Rank(2)), Cause::Died(Picos::from_micros(7))));
    let dead = failure(&["dead_rank=2:op0"]);
    assert_eq!(dead.culprit, Culprit::Rank(Rank(2)));
    let late = failure(&["slow_rank=3:x100000"]);
    assert_eq!((late.culprit, late.cause), (Culprit::Rank(Rank(3)), Cause::Late));
    let down = timed("ring", 1, 1, &["flap=down[1]:1s/1.000001s@0ps.."]).unwrap_err();
    assert!(down.to_string().contains("to rank 1 is cut"), "{down}");
    let text = dead.to_string();
    assert!(text.starts_with("rank 2 is lost: it died at 6.600 us; rank "), "{text}");
}

#[test]
fn a_rank_that_dies_after_its_part_harms_nobody() {
    assert_eq!(ring(&["dead_rank=2@1s"]).unwrap(), ring(&[]).unwrap());
    assert!(ring(&["dead_rank=2:op1"]).is_ok());
    assert!(matches!(ring(&["dead_rank=2:op0.round5"]), Err(Error::Fault(_))));
}

/// Two rules of different kinds that make things late; the kinds and the numbers follow from `n`.
fn late_rules(n: u64, ranks: u32, link: &str) -> Vec<String> {
    let (rank, other) = (n % u64::from(ranks), (n + 1) % u64::from(ranks));
    let (few, more) = (1 + n % 13, 20 + n % 37);
    let all = [
        format!("slow_rank={rank}:x{few}@{few}us..{more}us"),
        format!("jitter_rank=*:exp({few}us)"),
        format!("stop_rank={rank}@{few}us..{more}us"),
        format!("slow_link={link}:x{few}@{few}us..{more}us"),
        format!("jitter_link={link}:lognormal({few}us,0.5)"),
        format!("flap={link}:{few}us/{}us", few + more),
        format!("partition={rank}|{other}@{few}us..{more}us"),
        format!("delay=*>{other}:30%:pareto({few}us,1.5)"),
        format!("duplicate={rank}>*:40%"),
        format!("reorder={rank}>{other}:50%:+{more}us"),
    ];
    let first = (n % 10) as usize;
    vec![all[first].clone(), all[(first + 1 + (n / 10 % 9) as usize) % 10].clone()]
}

#[test]
fn ranks_that_carry_data_meet_the_same_faults_at_the_same_picosecond() {
    use allfold_collectives::{DType, Plan, ReduceOp, World};
    let names = ["ring", "double_binary_tree", "halving_doubling", "direct", "chain", "hierarchical"];
    for n in 0..240u64 {
        let ranks = 2 + (n % 7) as u32;
        let topology = Topology::named(["switch", "ring", "nodes4x2"][(n % 3) as usize], ranks).unwrap();
        let link = topology.link_name(allfold_sim::LinkId((n * 7 % u64::from(topology.links())) as u32));
        let rules = late_rules(n, ranks, &link);
        let faults = Faults::parse(rules.iter().map(String::as_str), &topology).unwrap().seeded(n);
        let (name, window) = (names[(n % 6) as usize], [1, 4, 16][(n / 6 % 3) as usize]);
        let plan = Plan::default().algorithm(Collective::AllReduce, name).unwrap();
        let plan = plan.segment(4096).unwrap().window(window).unwrap();
        let planned = plan.of(Collective::AllReduce, ranks, 20_000, DType::F32).unwrap();
        let job = Job {
            window: planned.window,
            faults: &faults,
            ..Job::new(&*planned.schedule, &planned.geometry, 4, &topology)
        };
        let timed = simulate(&job, Engine::Auto).unwrap();
        let world = World::sim(&topology).faults(faults.clone()).algorithm(Collective::AllReduce, name);
        let carried = world.segment(4096).window(window).run_each(|comm| {
            let mut data = vec![1f32; 20_000];
            comm.all_reduce(&mut data, ReduceOp::Sum)?;
            Ok::<bool, allfold_collectives::Error>(data.iter().all(|sum| *sum == ranks as f32))
        });
        let carried = carried.unwrap();
        assert!(carried.ranks.iter().all(|right| *right == Ok(true)), "{n}: {rules:?}: {:?}", carried.ranks);
        assert_eq!(carried.finish, timed.finish, "{n}: {name}, window {window}, {rules:?}");
        assert_eq!(carried.event_hash, Some(timed.event_hash), "{n}: {name}, {rules:?}");
    }
}

#[test]
fn a_rank_that_computes_is_slow_jitters_and_has_its_own_device() {
    use allfold_collectives::World;
    use allfold_sim::DeviceWork;
    let topology = Topology::named("switch", 4).unwrap();
    let finish = |rule: &str| {
        let faults = Faults::parse([rule], &topology).unwrap();
        let world = World::sim(&topology).faults(faults);
        let report = world.run_each(|comm| {
            comm.charge(&DeviceWork { bytes: 2_039_000_000, ..DeviceWork::default() });
            Ok::<(), allfold_collectives::Error>(())
        });
        report.unwrap().finish
    };
    let ms = |ms: u64| Picos::from_micros(ms * 1000);
    assert_eq!(finish("slow_rank=2:x3"), [ms(1), ms(1), ms(3), ms(1)]);
    assert_eq!(finish("slow_rank=2:x3@0ms..1.5ms"), [ms(1), ms(1), Picos::from_micros(2000), ms(1)]);
    assert_eq!(finish("jitter_rank=1:+1ms"), [ms(1), ms(2), ms(1), ms(1)]);
    let other = finish("device=3:h100");
    assert!(other[3] < other[0] && other[..3].iter().all(|time| *time == ms(1)), "{other:?}");
}
