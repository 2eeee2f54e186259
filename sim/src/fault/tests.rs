//! Tests of the effect of fault rules, and that a rule's text and value convert into each other.

use super::*;
use crate::device::{Device, DeviceWork};
use crate::{BytesPerSec, Costs, Picos};
use proptest::prelude::*;

fn nodes() -> Topology {
    Topology::named("nodes8", 16).unwrap()
}

fn faults(rules: &[&str]) -> Faults {
    Faults::parse(rules.iter().copied(), &nodes()).unwrap()
}

fn error(text: &str) -> String {
    Faults::parse([text], &nodes()).unwrap_err().to_string()
}

#[test]
fn a_slow_rank_is_slower_at_all_that_it_does_and_no_other_is() {
    let faults = faults(&["slow_rank=3:x4", "slow_rank=2-3:x1.5"]);
    let costs = Costs { overhead: Picos(10), memory: Some(BytesPerSec(600)), ..Costs::default() };
    let slow = faults.costs(Rank(3), &costs);
    assert_eq!(
        (slow.overhead, slow.launch, slow.memory),
        (Picos(60), costs.launch * 6, Some(BytesPerSec(100)))
    );
    assert_eq!(faults.costs(Rank(4), &costs), costs);
    let work = DeviceWork { bytes: 3_350_000, ..DeviceWork::default() };
    assert_eq!(faults.compute(Rank(3), &Device::named("h100").unwrap(), work), Picos::from_micros(6));
}

#[test]
fn a_slow_link_loses_bandwidth_or_gains_latency() {
    let topology = nodes();
    let faults = faults(&["slow_link=nic_out[0]:x10", "slow_link=up[5]:+20us"]);
    let nic = topology.find_link("nic_out[0]").unwrap();
    let up = topology.find_link("up[5]").unwrap();
    let (was_nic, was_up) = (topology.link(nic), topology.link(up));
    assert_eq!(faults.link(nic, was_nic).bandwidth.0, was_nic.bandwidth.0 / 10);
    assert_eq!(faults.link(up, was_up).latency, was_up.latency + Picos::from_micros(20));
    assert_eq!(faults.link(LinkId(0), topology.link(LinkId(0))), topology.link(LinkId(0)));
    assert!(faults.is_steady());
}

#[test]
fn a_rule_that_cannot_be_meant_says_what_would_be_right() {
    for (text, says) in [
        ("slow_rank=16:x4", "ranks go from 0 to 15"),
        ("slow_rank=1:+3us", "a factor such as x4"),
        ("slow_rank=1:x0.5", "x1 or more"),
        ("slow_lnk=up[0]:x2", "did you mean `slow_link`"),
        ("slow_link=upp[0]:x2", "did you mean `up`"),
        ("slow_link=up[16]:x2", "up[0] to up[15]"),
        ("slow_link=up[1]:+3", "such as +20us"),
        ("slow_link=up[1]", "write it as in slow_link="),
        ("nonsense", "write slow_rank=3:x4"),
        ("slow_rank=3:x4@5ms", "such as 5ms..20ms"),
        ("drop=0>1", "write it as in drop=0>1:#3"),
        ("drop=0-1:#3", "write 0>1, 0<>1 or *>3"),
        ("drop=0>1:3", "#3, 0.1% or all"),
        ("drop=0>16:#3", "rank 16 in"),
        ("flap=up[0]:10ms/1ms", "such as 1ms/10ms"),
        ("partition=0-3", "two sets of ranks"),
        ("stop_rank=3", "needs a time span"),
        ("dead_rank=3", "3@5ms, 3:op2 or 3:op2.round5"),
        ("dead_rank=x@5ms", "write a number from 0"),
        ("delay=0>1:all:normal(3us)", "exp(5us)"),
        ("device=3:h1000", "did you mean `h100`"),
    ] {
        assert!(error(text).contains(says), "{text}: {}", error(text));
    }
}

/// A kind without a parser of its own is an error, because a catch-all arm once read every such kind as `reorder`.
#[test]
fn a_kind_without_a_reader_is_never_read_as_another() {
    let error = "overtake=0>1:#3:+20us".parse::<Rule>().unwrap_err().to_string();
    assert!(error.contains("no rule is called `overtake`"), "{error}");
    for one in KINDS {
        let (_, rest) = one.example.split_once('=').unwrap();
        for other in KINDS {
            // If another kind accepts the rule's text too, the result must be a rule of that other kind.
            if let Ok(rule) = format!("{}={rest}", other.name).parse::<Rule>() {
                assert!(rule.to_string().starts_with(&format!("{}=", other.name)), "{rule}");
            }
        }
    }
}

#[test]
fn a_blank_before_the_rank_does_not_stop_it_for_ever() {
    for text in ["stop_rank=3", "stop_rank= 3", "stop_rank =3"] {
        let error = text.parse::<Rule>().unwrap_err().to_string();
        assert!(error.contains("needs a time span, such as `@1ms..2ms`"), "{text}: {error}");
    }
}

#[test]
fn every_kind_is_shown_by_an_example_that_goes_round() {
    for FaultKind { name: kind, example, .. } in KINDS {
        let rule: Rule = example.parse().unwrap();
        assert_eq!(rule.to_string(), example);
        assert!(example.starts_with(&format!("{kind}=")));
        assert_eq!(serde_json::from_str::<Rule>(&serde_json::to_string(&rule).unwrap()).unwrap(), rule);
    }
    assert!(serde_json::from_str::<Rule>("\"slow_rank\"").is_err());
}

#[test]
fn a_window_slows_down_what_lies_in_it_and_a_pause_moves_it() {
    let faults = faults(&[
        "slow_rank=3:x4@10us..30us",
        "stop_rank=4@10us..30us",
        "slow_rank=5:x2@10us..30us",
        "slow_rank=5:x2@20us..",
    ]);
    let takes = |rank, start, span| {
        let span = faults.takes(Rank(rank), Picos::from_micros(start), Picos::from_micros(span));
        span.as_micros()
    };
    assert_eq!(takes(2, 0, 100), 100.0);
    // The work takes 10 us at full pace, 20 us at a quarter of the pace, then full pace.
    assert_eq!(takes(3, 0, 25), 10.0 + 20.0 + 10.0);
    assert_eq!(takes(3, 15, 3), 12.0);
    assert_eq!(takes(4, 0, 11), 31.0);
    assert_eq!(takes(4, 12, 1), 19.0);
    // The rank is slower by x2 up to 20 us, by x4 up to 30 us, then by x2.
    assert_eq!(takes(5, 10, 10), 10.0 + 10.0 + 5.0);
    assert!(!faults.is_steady());
}

#[test]
fn a_link_flaps_and_gates_close_when_they_are_to() {
    let topology = nodes();
    let faults = faults(&["flap=up[0]:1ms/10ms@5ms..", "partition=0-3|4-7@2ms..3ms", "cut=8>9"]);
    let (ms, rate) = (|ms: u64| Picos::from_micros(ms * 1000), BytesPerSec(100));
    let up = topology.find_link("up[0]").unwrap();
    for (at, expected) in [(0, 100), (13, 100), (14, 0), (15, 100), (24, 0)] {
        assert_eq!(faults.bandwidth(up, rate, ms(at)).0, expected, "{at} ms");
    }
    assert_eq!(faults.changing(), [up]);
    let mut changes = vec![ms(0)];
    while changes.len() < 8 {
        changes.extend(faults.change(changes[changes.len() - 1]));
    }
    assert_eq!(changes, [0, 2, 3, 5, 14, 15, 24, 25].map(ms));
    assert!(faults.is_partitioned(Rank(1), Rank(5), ms(2)) && faults.is_partitioned(Rank(5), Rank(1), ms(2)));
    assert!(
        !faults.is_partitioned(Rank(1), Rank(5), ms(3)) && !faults.is_partitioned(Rank(1), Rank(9), ms(2))
    );
    assert!(
        faults.is_partitioned(Rank(8), Rank(9), ms(0)) && !faults.is_partitioned(Rank(9), Rank(8), ms(0))
    );
    assert_eq!(faults.gates(), 2);
}

#[test]
fn a_flow_that_waits_for_a_gate_and_for_flapping_links_moves_before_it_is_given_up() {
    let us = Picos::from_micros;
    // The gate opens at 1811 us, while the link is down.
    let settled = |rules: &[&str]| faults(rules).settled(us(15));
    assert!(settled(&["flap=down[10]:24us/151us", "stop_rank=10@16us..1811us"]) >= us(1812));
    // Two links that are up together once in 35 us.
    assert!(settled(&["flap=up[0]:4us/5us", "flap=up[1]:6us/7us"]) >= us(15 + 35));
    assert!(settled(&["flap=up[0]:999983ps/999984ps", "flap=up[1]:999978ps/999979ps"]) <= us(15 + 2 * 1024));
    assert_eq!(settled(&["cut=8>9"]), us(15));
}

#[test]
fn as_many_messages_are_lost_as_was_asked_for_and_always_the_same() {
    let lost = |seed| -> Vec<u64> {
        let faults = faults(&["drop=*>*:10%"]).seeded(seed);
        let message =
            |round| Message { from: Rank(0), to: Rank(1), operation: 0, round, nth: 1, at: Picos::ZERO };
        (0..10_000).filter(|round| faults.verdict(&message(*round)).dropped).collect()
    };
    assert!((900..1_100).contains(&lost(1).len()));
    assert_eq!(lost(1), lost(1));
    assert_ne!(lost(1), lost(2));
}

#[test]
fn real_sockets_take_rules_about_ranks_and_say_so_of_others() {
    let rules = |text: &str| vec![text.parse::<Rule>().unwrap()];
    assert!(Faults::of_ranks(rules("corrupt=0>1:#3"), 2).is_ok());
    assert!(Faults::of_ranks(rules("corrupt=0>2:#3"), 2).is_err());
    let error = Faults::of_ranks(rules("flap=up[0]:1ms/2ms"), 2).unwrap_err().to_string();
    assert!(error.contains("write delay=0>1:all:+20us"), "{error}");
}

fn any_rule() -> impl Strategy<Value = String> {
    let when =
        prop_oneof![Just(String::new()), (0u64..9, 9u64..99).prop_map(|(a, b)| format!("@{a}.5us..{b}ms"))];
    let noise = prop_oneof![
        (1u64..999).prop_map(|n| format!("+{n}ns")),
        (1u64..999).prop_map(|n| format!("exp({n}us)")),
        (1u64..99, 1u64..99).prop_map(|(m, s)| format!("lognormal({m}ms,0.{s})")),
        (1u64..99, 1u64..9).prop_map(|(m, s)| format!("pareto({m}us,1.{s})")),
        (1u64..99, 99u64..999).prop_map(|(a, b)| format!("uniform({a}us,{b}us)")),
    ];
    let which =
        prop_oneof![Just("all".to_string()), (1u64..99).prop_map(|n| format!("#{n}")), Just("0.01%".into())];
    let pair = prop_oneof![Just("0>1"), Just("0-2,5<>7"), Just("*>3")];
    let target = (pair, which, noise);
    (0..12usize, target, when, 1u64..9).prop_map(|(kind, (pair, which, noise), when, n)| match kind {
        0 => format!("slow_rank={n}:x{n}.25{when}"),
        1 => format!("jitter_rank=*:{noise}{when}"),
        2 => format!("slow_link=up[{n}]:x{n}+{n}us{when}"),
        3 => format!("jitter_link=*:{noise}{when}"),
        4 => format!("flap=nic_in[*]:{n}us/{n}ms{when}"),
        5 => format!("partition=0-{n}|10,12{when}"),
        6 => format!("cut={pair}{when}"),
        7 => format!("drop={pair}:{which}{when}"),
        8 => format!("corrupt={pair}:{which}{when}"),
        9 => format!("delay={pair}:{which}:{noise}{when}"),
        10 => format!("dead_rank={n}:op{n}.round{n}"),
        _ => format!("reorder={pair}:{which}:+{n}us{when}"),
    })
}

proptest! {
    #[test]
    fn what_a_rule_prints_is_the_same_rule(text in any_rule()) {
        let rule: Rule = text.parse().unwrap();
        prop_assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "[a-z_]{0,8}=?[-0-9a-z*\\[\\]>:@.,%#+/|()]{0,24}", kind in 0usize..15) {
        let _ = text.parse::<Rule>();
        let _ = format!("{}={text}", KINDS[kind].name).parse::<Rule>();
    }
}
