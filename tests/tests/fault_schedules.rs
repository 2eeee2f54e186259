#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! A thousand seeded fault schedules: hangs 0, wrong results 0, unnamed culprits 0. `FAULT_SCHEDULES=100000` makes it a
//! longer search. For a schedule that breaks the contract, the command that runs it again is printed.

use allfold_experiments::faults::{self, FaultCase, Tally};
use std::thread;

#[test]
fn a_thousand_schedules_neither_hang_nor_lie_nor_keep_the_culprit_to_themselves() {
    let count = std::env::var("FAULT_SCHEDULES").ok().and_then(|count| count.parse().ok()).unwrap_or(1000);
    let mut tally = Tally::default();
    let mut broken = Vec::new();
    // A schedule's ranks mostly wait for each other: several schedules run at a time.
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let share = |first: usize| {
        move || (first as u64..count).step_by(threads).map(|seed| faults::run(seed).unwrap()).collect()
    };
    let shares: Vec<Vec<_>> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|first| scope.spawn(share(first))).collect();
        running.into_iter().map(|share| share.join().unwrap()).collect()
    });
    for verdict in shares.into_iter().flatten() {
        tally.add(&verdict);
        if !verdict.holds() {
            broken.push(format!("{}: {}\n  {}", verdict.replay(), verdict.case, verdict.ranks.join("\n  ")));
        }
    }
    assert!(broken.is_empty(), "{} of {count} break the contract:\n{}", broken.len(), broken.join("\n"));
    assert_eq!((tally.hangs, tally.wrong, tally.misattributed), (0, 0, 0));
    // If few schedules have an effect, the search proves nothing.
    assert!(
        tally.kinds.len() == 14 && tally.attributed > count / 10 && tally.right > count / 10,
        "{tally:?}"
    );
}

#[test]
fn a_schedule_is_the_same_to_the_bit_when_it_is_run_again() {
    for seed in 0..40 {
        let (first, second) = (faults::run(seed).unwrap(), faults::run(seed).unwrap());
        assert_eq!(first.event_hash, second.event_hash, "{}", first.replay());
        assert_eq!(first.ranks, second.ranks, "{}", first.replay());
        assert_eq!(FaultCase::drawn(seed).to_string(), first.case);
    }
}
