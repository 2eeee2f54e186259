#![allow(missing_docs, clippy::unwrap_used)]
//! Gloo's recorder retires an operation when it ends, and when it fails.

use allfold_triage::model::DumpedJob;
use allfold_triage::{CauseKind, DumpReader, Hung, judge};
use serde_json::{Value, json};
use std::path::Path;

const START: i64 = 1_790_000_000_000_000_000;
const SECOND: i64 = 1_000_000_000;

/// A call: the group's name and description, the operation, and when it was called in seconds.
type Called = (&'static str, &'static str, &'static str, i64);

/// A dump as PyTorch's hook for other backends writes it: the last operation is open or not, and none counts as completed.
fn hooked(calls: &[Called], open: bool) -> String {
    let mut dump: Value = serde_json::from_str(&dump(calls)).unwrap();
    dump["pg_config"] = json!({"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}});
    for entry in dump["entries"].as_array_mut().unwrap() {
        entry["profiling_name"] = entry["profiling_name"].as_str().unwrap().replace("gloo", "allfold").into();
    }
    dump["entries"].as_array_mut().unwrap().last_mut().unwrap()["retired"] = (!open).into();
    dump.to_string()
}

#[test]
fn a_hook_without_events_says_which_rank_is_in_no_operation_and_which_came_after_the_time_out() {
    let judged = |ranks: [&[Called]; 3], open: [bool; 3]| {
        let mut reading = DumpReader::default();
        for (rank, (calls, open)) in ranks.into_iter().zip(open).enumerate() {
            let name = format!("nccl_trace_rank_{rank}");
            reading.bytes(Path::new(&name), START + 200 * SECOND, hooked(calls, open).as_bytes()).unwrap();
        }
        judge(&reading.finish().unwrap())
    };
    let (waits, absent) = (after(&[world("all_reduce", 5)]), after(&[]));
    let found = judged([&waits, &absent, &waits], [true, false, true]);
    assert_eq!((found.hung, found.decided), (Hung::Yes, true), "{found:?}");
    assert_eq!((found.causes[0].kind, &*found.causes[0].ranks), (CauseKind::Elsewhere, &[1][..]));
    let late = after(&[world("all_reduce", 36)]);
    let found = judged([&waits, &late, &waits], [true; 3]);
    assert!(found.decided, "{found:?}");
    assert_eq!((found.causes[0].kind, &*found.causes[0].ranks), (CauseKind::ShortTimeout, &[1][..]));
    // Within the time-out a late rank is no reason for an operation not to end.
    let late = after(&[world("all_reduce", 30)]);
    assert_eq!(judged([&waits, &late, &waits], [true; 3]).causes[0].kind, CauseKind::Network);
}

/// A dump as Gloo's recorder writes it: all operations are retired, and no group but the latest is listed.
fn dump(calls: &[Called]) -> String {
    let entry = |(number, (name, desc, operation, at)): (usize, &Called)| {
        let before = calls[..number].iter().filter(|(other, ..)| other == name).count();
        json!({"record_id": number, "pg_id": 0, "process_group": [name, desc], "collective_seq_id": before + 1, "p2p_seq_id": 0,
               "op_id": number + 1, "profiling_name": format!("gloo:{operation}"), "input_sizes": [[10]], "output_sizes": [[10]],
               "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "scheduled", "time_created_ns": START + at * SECOND,
               "time_discovered_started_ns": 0, "time_discovered_completed_ns": 0, "is_p2p": false, "retired": true,
               "timeout_ms": 30_000})
    };
    let entries: Vec<Value> = calls.iter().enumerate().map(entry).collect();
    json!({"version": "2.10", "pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}, "entries": entries}).to_string()
}

fn read(size: u32, written: i64, dumps: &[(u32, &[Called])]) -> DumpedJob {
    let mut reading = DumpReader::default();
    reading.ranks(size);
    for (rank, calls) in dumps {
        let name = format!("nccl_trace_rank_{rank}");
        reading.bytes(Path::new(&name), START + written * SECOND, dump(calls).as_bytes()).unwrap();
    }
    reading.finish().unwrap()
}

const fn world(operation: &'static str, at: i64) -> Called {
    ("0", "default_pg", operation, at)
}

/// Five operations that all ranks make, and then these.
fn after(more: &[Called]) -> Vec<Called> {
    let mut calls: Vec<Called> = (0..5).map(|at| world("all_reduce", at)).collect();
    calls.extend(more);
    calls
}

#[test]
fn an_operation_that_a_rank_did_not_enter_has_failed_once_the_job_stands_still() {
    let (waits, absent) = (after(&[world("all_reduce", 5)]), after(&[]));
    let dumps: [(u32, &[Called]); 3] = [(0, &waits), (1, &absent), (2, &waits)];
    let found = judge(&read(3, 60, &dumps));
    assert_eq!((found.hung, found.decided), (Hung::Yes, true), "{found:?}");
    assert_eq!((found.causes[0].kind, &*found.causes[0].ranks), (CauseKind::Elsewhere, &[1][..]));
    // A job under way looks the same for a moment.
    assert_eq!(judge(&read(3, 6, &dumps)).hung, Hung::No);
}

#[test]
fn a_rank_that_made_another_call_or_left_no_dump_is_named() {
    let (right, wrong) = (after(&[world("all_reduce", 5)]), after(&[world("broadcast", 5)]));
    let found = judge(&read(3, 60, &[(0, &right), (1, &wrong), (2, &right)]));
    assert_eq!((found.hung, found.decided), (Hung::Yes, true), "{found:?}");
    assert_eq!((found.causes[0].kind, &*found.causes[0].ranks), (CauseKind::OtherOperation, &[1][..]));
    let found = judge(&read(3, 60, &[(0, &right), (2, &right)]));
    assert_eq!((found.hung, found.decided), (Hung::Yes, true), "{found:?}");
    assert_eq!((found.causes[0].kind, &*found.causes[0].ranks), (CauseKind::NoDump, &[1][..]));
}

/// Gloo numbers sends and receives with the other calls of a group, and does not record them.
#[test]
fn a_rank_that_made_a_message_less_than_before_is_named_and_one_between_messages_is_not() {
    // Between its collectives a rank makes three calls that are not recorded, and `last` before its last one.
    let rank = |collectives: i64, last: i64| {
        let calls: Vec<Called> = (0..collectives).map(|at| world("all_reduce", at)).collect();
        let mut dump: Value = serde_json::from_str(&dump(&calls)).unwrap();
        for (number, entry) in dump["entries"].as_array_mut().unwrap().iter_mut().enumerate() {
            let missing = if number as i64 == collectives - 1 { 3 - last } else { 0 };
            entry["op_id"] = (4 * (number as i64 + 1) - missing).into();
        }
        dump.to_string()
    };
    let judged = |ranks: [String; 3]| {
        let mut reading = DumpReader::default();
        reading.ranks(3);
        for (rank, dump) in ranks.iter().enumerate() {
            let name = format!("nccl_trace_rank_{rank}");
            reading.bytes(Path::new(&name), START + 200 * SECOND, dump.as_bytes()).unwrap();
        }
        judge(&reading.finish().unwrap())
    };
    let found = judged([rank(6, 3), rank(7, 2), rank(7, 3)]);
    assert!(found.decided, "{found:?}");
    assert_eq!((found.causes[0].kind, &*found.causes[0].ranks), (CauseKind::MissingSend, &[1][..]));
    // All may be in messages, of which nothing is known.
    let found = judged([rank(6, 3), rank(6, 3), rank(6, 3)]);
    assert_eq!((found.hung, found.decided), (Hung::Unknown, false), "{found:?}");
    assert!(found.causes[0].said.contains("a send or a receive is missing"), "{found:?}");
}

#[test]
fn a_rank_that_came_after_the_time_out_is_named() {
    let (early, late) = (after(&[world("all_reduce", 5)]), after(&[world("all_reduce", 36)]));
    let found = judge(&read(3, 200, &[(0, &early), (1, &early), (2, &late)]));
    assert_eq!((found.hung, found.decided), (Hung::Yes, true), "{found:?}");
    assert_eq!((found.causes[0].kind, &*found.causes[0].ranks), (CauseKind::ShortTimeout, &[2][..]));
}

#[test]
fn a_rank_without_a_dump_belongs_to_the_group_that_is_short_of_one() {
    let pair = |name, at| (name, "pair", "all_reduce", at);
    let (first, second) = (after(&[pair("1", 5), world("all_reduce", 6)]), after(&[pair("2", 5)]));
    let job = read(4, 60, &[(0, &first), (1, &first), (2, &second)]);
    let members: Vec<_> = job.groups.iter().map(|group| &group.members[..]).collect();
    assert_eq!(members, [&[0, 1, 2, 3][..], &[0, 1], &[2, 3]]);
    let found = judge(&job);
    assert_eq!((found.hung, &*found.causes[0].ranks), (Hung::Yes, &[3][..]), "{found:?}");
}
