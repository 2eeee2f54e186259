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
