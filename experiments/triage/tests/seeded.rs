#![allow(missing_docs, clippy::unwrap_used)]
//! Seeded hangs are judged rightly.

use allfold_triage::seeded::{SeededCase, Withheld};
use std::collections::BTreeMap;

/// The share of cases with cause and rank named first, and with a healthy rank named first, in percent: of faults, and of healthy jobs.
fn shares(cases: u64, seed: u64, withheld: Withheld) -> [(f64, f64); 2] {
    let mut counts = [(0_u64, 0_u64, 0_u64); 2];
    let mut by_fault: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    for number in 0..cases {
        let case = SeededCase::drawn(seed, number);
        let score = case.score(withheld, &case.with(withheld, seed ^ number)).unwrap();
        if !score.first {
            println!(
                "case {number} {} {} rank {} of {}, {}: {}",
                case.job,
                case.fault.name(),
                case.rank,
                case.ranks,
                withheld.name(),
                score.said
            );
        }
        let count = &mut counts[usize::from(case.fault.is_healthy())];
        let row = by_fault.entry(case.fault.name()).or_default();
        for count in [count, row] {
            *count = (count.0 + 1, count.1 + u64::from(score.first), count.2 + u64::from(score.wrong));
        }
    }
    by_fault.iter().for_each(|(fault, (all, first, wrong))| {
        println!("{:9} {fault:22} {first} of {all}, {wrong} wrong", withheld.name())
    });
    counts.map(|(all, first, wrong)| (100.0 * first as f64 / all as f64, 100.0 * wrong as f64 / all as f64))
}

#[test]
fn causes_and_ranks_are_named_first() {
    // A random dump or half of them withheld leave many cases open, and may not make a healthy rank the cause.
    let rows = [
        (Withheld::None, 94.0, 1.0),
        (Withheld::Culprit, 94.0, 2.0),
        (Withheld::Random, 80.0, 2.0),
        (Withheld::Half, 0.0, 2.0),
    ];
    for (withheld, least, most) in rows {
        let [(first, wrong), (_, hung)] = shares(200, 1, withheld);
        assert!(
            first >= least && wrong <= most && hung <= 1.0,
            "{}: {first} {wrong} {hung}",
            withheld.name()
        );
    }
}
