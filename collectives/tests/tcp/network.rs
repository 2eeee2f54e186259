//! Cases 5, 7 to 13 and 24: faults of the network between two ranks.

use super::arena::{deadlines, nothing, run, sum};
use allfold_collectives::tcp::{Deadlines, FrameDecision, HEADER, Passing, ProxyAction, Rules};
use allfold_collectives::{Error, Lost, Rank};
use allfold_sim::Faults;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn rules(texts: &[&str], ranks: u32) -> Arc<dyn FrameDecision> {
    let rules = texts.iter().map(|text| text.parse().unwrap()).collect();
    Arc::new(Rules::new(Faults::of_ranks(rules, ranks).unwrap()))
}

/// Applies `action` once: to the first data frame from rank 1 to rank 0 of this operation.
fn once(operation: u64, action: ProxyAction) -> Arc<dyn FrameDecision> {
    let done = AtomicBool::new(false);
    Arc::new(move |frame: &Passing| {
        let it =
            frame.is_data && frame.from == Rank(1) && frame.to == Rank(0) && frame.operation == operation;
        if it && !done.swap(true, Ordering::Relaxed) { action } else { ProxyAction::Pass }
    })
}

fn impatient(dead: u64, operation: u64) -> Deadlines {
    Deadlines {
        dead: Duration::from_millis(dead),
        operation: Duration::from_millis(operation),
        ..deadlines()
    }
}

#[test]
fn nothing_wrong_behind_a_proxy_is_a_right_result() {
    let results = run(4, nothing(), deadlines(), |comm| (0..5).try_for_each(|i| sum(comm, i * 40_001)));
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn case_5_a_slow_peer_below_the_deadline_gives_the_right_result() {
    let slow = rules(&["delay=1>*:all:+20ms"], 3);
    let results = run(3, slow, deadlines(), |comm| (0..3).try_for_each(|_| sum(comm, 1000)));
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn case_5_a_peer_slower_than_the_detector_is_not_lost() {
    // Rank 1's messages take longer than the time after which a silent peer is lost; its heartbeats do not.
    let slow = rules(&["delay=1>*:#1:+2500ms"], 2);
    let results = run(2, slow, impatient(2000, 20_000), |comm| sum(comm, 1000));
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn case_7_a_symmetric_partition_fails_both_sides_in_time() {
    let parted = rules(&["partition=0-1|2-3@200ms.."], 4);
    let begun = Instant::now();
    let results =
        run(4, parted, impatient(1500, 20_000), |comm| (0..100_000).try_for_each(|_| sum(comm, 10)));
    assert!(begun.elapsed() < Duration::from_secs(15));
    for result in results {
        assert!(
            matches!(result, Err(Error::PeerLost { cause: Lost::Silent { .. } | Lost::Disconnected(_), .. })),
            "{result:?}"
        );
    }
}

#[test]
fn case_8_an_asymmetric_partition_names_the_link() {
    let cut = rules(&["cut=0>1@200ms.."], 2);
    let results = run(2, cut, impatient(1500, 20_000), |comm| (0..100_000).try_for_each(|_| sum(comm, 10)));
    for result in results {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("rank 0 is lost: it gave rank 1 no sign of life"), "{text}");
    }
}

#[test]
fn case_9_a_partition_that_heals_before_the_deadline_is_a_right_result() {
    let healing = rules(&["partition=0|1-2@100ms..600ms"], 3);
    let begun = Instant::now();
    let results = run(3, healing, deadlines(), move |comm| {
        while begun.elapsed() < Duration::from_millis(900) {
            sum(comm, 500)?;
            // Rank 0 decides for all ranks whether they continue.
            let mut more = [u8::from(begun.elapsed() < Duration::from_millis(900))];
            comm.broadcast(&mut more, Rank(0))?;
            if more[0] == 0 {
                break;
            }
        }
        Ok(())
    });
    assert!(results.iter().all(|r| r.is_ok() || matches!(r, Err(Error::PeerLost { cause: Lost::ReturnedEarly { .. }, .. }))), "{results:?}");
    assert!(results.iter().any(Result::is_ok), "{results:?}");
}

#[test]
fn case_10_a_reset_at_any_byte_of_a_frame_is_a_lost_peer() {
    for after in (0..=HEADER + 1).chain([HEADER + 777]) {
        let reset = once(1, ProxyAction::Cut { after, reset: true });
        let results = run(2, reset, deadlines(), |comm| (0..3).try_for_each(|_| sum(comm, 1000)));
        for result in results {
            assert!(
                matches!(&result, Err(Error::PeerLost { cause: Lost::Disconnected(_), .. })),
                "after {after} bytes: {result:?}"
            );
        }
    }
}

#[test]
fn case_11_a_frame_that_ends_early_is_told_as_that() {
    for after in [1, HEADER - 1, HEADER, HEADER + 1, HEADER + 777] {
        let cut = once(1, ProxyAction::Cut { after, reset: false });
        let results = run(2, cut, deadlines(), |comm| (0..3).try_for_each(|_| sum(comm, 1000)));
        for result in results {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("ended in the middle of a frame"), "after {after} bytes: {text}");
        }
    }
}

#[test]
fn case_12_a_flipped_bit_of_a_payload_is_found_and_no_result_is_wrong() {
    for bit in [0, 1, 777, 8 * 2000 - 1] {
        let flip = once(0, ProxyAction::Flip(8 * HEADER as u64 + bit));
        let results = run(2, flip, deadlines(), |comm| sum(comm, 1000));
        // Rank 1 may have succeeded before rank 0 found the damage.
        let Err(Error::Protocol { rank: Rank(0), peer: Rank(1), what, .. }) = &results[0] else {
            panic!("bit {bit}: {results:?}");
        };
        assert_eq!(what, "its payload's checksum is wrong");
    }
    let rule = rules(&["corrupt=1>0:#2"], 2);
    let results = run(2, rule, deadlines(), |comm| (0..3).try_for_each(|_| sum(comm, 1000)));
    assert!(results.iter().all(|r| matches!(r, Err(Error::Protocol { .. }))), "{results:?}");
}

#[test]
fn case_13_every_flipped_bit_of_a_header_is_refused() {
    for bit in 0..8 * HEADER as u64 {
        let flip = once(0, ProxyAction::Flip(bit));
        let results = run(2, flip, deadlines(), |comm| sum(comm, 100));
        let found = matches!(&results[0], Err(Error::Protocol { rank: Rank(0), peer: Rank(1), .. }));
        assert!(found, "bit {bit}: {results:?}");
    }
}

#[test]
fn a_lost_or_repeated_message_is_found_by_the_frame_after_it() {
    for text in ["drop=1>0:#1", "duplicate=1>0:#1"] {
        let results = run(2, rules(&[text], 2), deadlines(), |comm| (0..3).try_for_each(|_| sum(comm, 1000)));
        for result in results {
            assert!(
                matches!(&result, Err(Error::Protocol { rank: Rank(0), peer: Rank(1), .. })),
                "{text}: {result:?}"
            );
        }
    }
}

#[test]
fn case_24_a_host_that_vanishes_is_dead_within_its_bound() {
    let vanishes: Arc<dyn FrameDecision> = Arc::new(|frame: &Passing| {
        let from_it = frame.from == Rank(2) || frame.to == Rank(2);
        if from_it && frame.time > Duration::from_millis(300) {
            return ProxyAction::Wait(Duration::from_millis(5));
        }
        ProxyAction::Pass
    });
    let begun = Instant::now();
    let results =
        run(3, vanishes, impatient(1500, 30_000), |comm| (0..1_000_000).try_for_each(|_| sum(comm, 10)));
    assert!(begun.elapsed() < Duration::from_secs(15));
    for result in &results[..2] {
        assert!(
            matches!(result, Err(Error::PeerLost { rank: Rank(2), cause: Lost::Silent { .. }, .. })),
            "{result:?}"
        );
    }
    assert!(results[2].is_err());
}
