#![allow(missing_docs, clippy::unwrap_used)]
//! Stories of public threads, rebuilt from their descriptions, and the files of other tools: the answer is right, or says what would tell.

use allfold_triage::model::{DumpedJob, Fact};
use allfold_triage::{CauseKind, DumpReader, Hung, Verdict, judge, lines};
use serde_json::{Value, json};
use std::path::Path;

const START: i64 = 1_790_000_000_000_000_000;
const SECOND: i64 = 1_000_000_000;

fn read(files: &[(&str, String)]) -> Result<DumpedJob, String> {
    let mut reading = DumpReader::default();
    for (name, text) in files {
        let read = reading.bytes(Path::new(name), START + 700 * SECOND, text.as_bytes());
        read.map_err(|error| format!("{name}: {error}"))?;
    }
    reading.finish()
}

fn verdict(files: &[(&str, String)]) -> (DumpedJob, Verdict) {
    let job = read(files).unwrap();
    let verdict = judge(&job);
    (job, verdict)
}

/// A dump of all-reduces of the ranks of a world, of which `done` ended and `open` more were called.
fn dump(version: &str, backend: &str, ranks: u32, done: u64, open: u64) -> String {
    let entry = |number: u64| {
        let time = START + number as i64 * SECOND;
        let ended = number < done;
        json!({"record_id": number, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": number + 1, "p2p_seq_id": 0,
               "op_id": number + 1, "profiling_name": format!("{backend}:all_reduce"), "input_sizes": [[10]], "output_sizes": [[10]],
               "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": if ended { "completed" } else { "started" },
               "time_created_ns": time, "time_discovered_started_ns": time, "is_p2p": false,
               "time_discovered_completed_ns": if ended { time + 1000 } else { 0 }, "retired": true, "timeout_ms": 600_000})
    };
    let entries: Vec<Value> = (0..done + open).map(entry).collect();
    let list = format!("{:?}", (0..ranks).collect::<Vec<_>>());
    json!({"version": version, "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": list}}, "entries": entries}).to_string()
}

/// https://github.com/pytorch/pytorch/issues/196968: rank 1 raises an exception, and blocks while it destroys its groups. It cannot answer
/// the request for dumps, and rank 0 alone leaves one.
#[test]
fn the_rank_that_blocks_in_teardown_is_named_though_its_dump_is_missing() {
    let (job, found) = verdict(&[("nccl_trace_rank_0", dump("2.10", "nccl", 2, 3, 1))]);
    assert_eq!((found.hung, found.decided), (Hung::Yes, true));
    assert_eq!((found.causes[0].kind, &*found.causes[0].ranks), (CauseKind::NoDump, &[1][..]));
    assert!(lines(&job, &found).iter().any(|line| line.contains("py-spy dump")));
}

fn ras(rows: &str, below: &str) -> String {
    format!(
        "NCCL version 2.26.2 compiled with CUDA 12.6\n\nJob summary\n===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n      4          8            1         32       32\n\nCommunicators... (0.00s)\n=============\n\n{rows}\n\n{below}"
    )
}

/// https://github.com/NVIDIA/nccl/issues/1911: RAS lists the two ranks that are ahead, as the smaller group. They are not late.
#[test]
fn ranks_that_are_ahead_in_ras_are_not_blamed() {
    let below = "#0-0 (fa93) MISMATCH\n  Communicator ranks have different AllGather operation counts\n  30 ranks have launched up to operation 640\n  2 ranks have launched up to operation 641\n  Rank 12 -- GPU 4 managed by process 32 on node 10.0.0.4\n  Rank 13 -- GPU 5 managed by process 33 on node 10.0.0.4\n";
    let (job, found) = verdict(&[(
        "ras.txt",
        ras("    0         1         4         8        32        32   RUNNING  MISMATCH", below),
    )]);
    assert_eq!((job.size, found.causes.len(), found.decided), (32, 0, false));
    assert_eq!(found.hung, Hung::Unknown);
    assert!(
        job.notes.iter().any(|note| note.contains("30 ranks") && note.contains("ahead")),
        "{:?}",
        job.notes
    );
    // The other way round, the two ranks are behind.
    let swapped = below.replace("operation 640", "operation 642");
    let (_, found) = verdict(&[("ras.txt", ras("", &swapped))]);
    let named: Vec<u32> = found.causes.iter().flat_map(|cause| cause.ranks.clone()).collect();
    assert_eq!(named, [12, 13]);
}

/// https://github.com/NVIDIA/nccl/issues/1730: RAS says that all is well, and PyTorch's watchdog says that an operation timed out on rank 118.
#[test]
fn a_rank_that_timed_out_is_not_the_cause_where_ras_is_content() {
    let log = "[rank118]:[E603 ProcessGroupNCCL.cpp:632] [Rank 118] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2398459, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800068 milliseconds before timing out.\n";
    let report = ras("    0         1        32         8       256       256   RUNNING      OK", "");
    let (job, found) = verdict(&[("ras.txt", report), ("stderr.log", log.into())]);
    assert_eq!((job.size, found.hung, found.decided, found.causes.len()), (256, Hung::Yes, false, 0));
    assert!(found.unknown.iter().any(|what| what.contains("TORCH_NCCL_DUMP_ON_TIMEOUT")));
}

#[test]
fn a_dead_process_of_the_monitor_mode_is_found_by_its_report() {
    let rank = |rank: u32| json!({"rank": rank, "host": "10.0.0.5", "pid": 100 + rank, "collective_counts": {"AllReduce": 5}});
    let report = json!({"communicators": [{"size": 3, "ranks": [rank(0), rank(1), rank(2)]}]}).to_string();
    let json = json!({"group": "LIFECYCLE", "event": "PEER_DEAD", "peer": {"host": "10.0.0.5", "pid": 101}})
        .to_string();
    let text = "  [2025-12-19 13:07:07] PEER_DEAD: Process 101 on node 10.0.0.5 managing GPU 1\n".to_string();
    for events in [json.repeat(2), text] {
        let (_, found) = verdict(&[("ras.json", report.clone()), ("monitor.log", events)]);
        assert_eq!((found.causes[0].kind, &*found.causes[0].ranks), (CauseKind::Died, &[1][..]));
    }
}

#[test]
fn ranks_that_were_aborted_or_ended_by_the_launcher_are_no_cause() {
    let ends = [(0, -6), (1, -9), (2, -15)];
    let ended =
        |(rank, code)| format!("  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 7)\n");
    let (job, found) = verdict(&[("launcher.log", ends.map(ended).concat())]);
    let facts: Vec<Fact> = job.words.iter().map(|word| word.fact).collect();
    assert_eq!(facts, [Fact::Aborted, Fact::Died, Fact::Aborted]);
    assert_eq!((found.hung, found.decided, &*found.causes[0].ranks), (Hung::Yes, true, &[1][..]));
    let (_, found) = verdict(&[("launcher.log", ended((0, -6)))]);
    assert!(!found.decided, "{found:?}");
}

#[test]
fn the_words_of_slurm_and_kubernetes_are_read() {
    let facts = |text: &str| {
        let job = read(&[("job.log", text.into())]).unwrap();
        job.words.iter().map(|word| (word.rank, word.fact)).collect::<Vec<_>>()
    };
    let died = |ranks: &[u32]| ranks.iter().map(|rank| (Some(*rank), Fact::Died)).collect::<Vec<_>>();
    assert_eq!(facts("srun: error: node7: task 3: Out Of Memory\n"), died(&[3]));
    assert_eq!(facts("srun: error: node7: tasks 8-9,12: Killed\n"), died(&[8, 9, 12]));
    assert_eq!(
        facts(
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
        ),
        [(None, Fact::Died)]
    );
    assert_eq!(facts("7.0  train  gpu  NODE_FAIL  0:0\n"), [(None, Fact::Unresponsive)]);
    assert_eq!(facts("trainer-3  0/1  OOMKilled  0  3h\n"), [(None, Fact::Died)]);
    assert_eq!(facts("node1:47:47 [0] NCCL INFO NET/IB : No device found.\n"), []);
}

#[test]
fn inspector_tells_who_is_slow_and_no_hang() {
    let line = |rank: u32, number: u64, time: f64| {
        json!({"header": {"id": "0x7f", "comm_name": "unknown", "rank": rank, "n_ranks": 3, "nnodes": 1},
               "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 1_790_000_000_000_000_i64, "hostname": "a", "pid": 7},
               "coll_perf": {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 8192, "coll_exec_time_us": time}})
        .to_string()
    };
    let file = |rank: u32, late: f64| format!("{}\n{}\n{{\"cut", line(rank, 1, 50.0), line(rank, 2, late));
    let (job, found) =
        verdict(&[("a.log", file(0, 9000.0)), ("b.log", file(1, 40.0)), ("c.log", file(2, 8000.0))]);
    assert_eq!((found.hung, found.causes.len()), (Hung::No, 0));
    let late = allfold_triage::slow::straggler(&job).unwrap();
    assert_eq!((late.rank, late.sequence, late.late), (1, 2, 8_960_000));
    let newer = file(0, 1.0).replace("v4.0", "v5.0");
    assert!(read(&[("a.log", newer)]).unwrap_err().contains("version v5.0"));
}

#[test]
fn versions_and_backends_are_read_and_major_versions_refused() {
    for version in ["2.1", "2.10", "2.11"] {
        for backend in ["nccl", "gloo", "nccl2", "my_backend"] {
            let text = dump(version, backend, 2, 3, 1);
            let job = read(&[("trace_0", text.clone()), ("trace_1.json", text)]).unwrap();
            assert_eq!(job.calls.get(job.logs[&0].ops[0].call).unwrap().name, "all_reduce");
            assert_eq!(job.notes.len(), usize::from(version == "2.11"), "{:?}", job.notes);
        }
    }
    assert!(read(&[("trace_0", dump("3.0", "nccl", 2, 1, 0))]).unwrap_err().contains("version 3.0"));
}

#[test]
fn dumps_of_two_jobs_and_two_dumps_of_a_rank_are_refused() {
    let text = |ranks| dump("2.10", "nccl", ranks, 3, 1);
    let two = [("a_0", text(2)), ("a_1", text(2)), ("b_2", text(8)), ("b_3", text(8))];
    assert!(read(&two).unwrap_err().contains("two jobs, of 8 and of 2 ranks"));
    assert!(
        read(&[("a_0", text(2)), ("b_0", text(2))]).unwrap_err().contains("rank 0 has two flight records")
    );
}

/// Regression: hosts whose clocks are hours apart, in their first operation, did not come late to it.
#[test]
fn clocks_that_are_hours_apart_are_no_late_rank() {
    let mut reading = DumpReader::default();
    let text = dump("2.10", "nccl", 2, 0, 1);
    let later = text.replace(&START.to_string(), &(START + 7200 * SECOND).to_string());
    for (name, hours, text) in [("trace_0", 0, text), ("trace_1", 7200, later)] {
        reading.bytes(Path::new(name), START + (hours + 700) * SECOND, text.as_bytes()).unwrap();
    }
    let found = judge(&reading.finish().unwrap());
    assert_eq!((found.causes[0].kind, found.decided), (CauseKind::Network, false), "{found:?}");
}

#[test]
fn ranks_that_got_equally_far_are_one_lane_and_what_is_open_reaches_the_edge() {
    let text = |open| dump("2.10", "nccl", 4, 3, open);
    let files = [("t_0", text(1)), ("t_1", text(1)), ("t_2", text(0)), ("t_3", text(1))];
    let (job, found) = verdict(&files);
    let spans = allfold_triage::timeline(&job, &found);
    let edge = spans.iter().map(|span| span.end).fold(0.0, f64::max);
    let open = spans.iter().filter(|span| span.end == edge);
    let open: Vec<_> = open.map(|span| (&*span.lane, span.kind)).collect();
    assert_eq!(open, [("rank 2, default_pg", "in no operation"), ("rank 0 +2, default_pg", "failed")]);
    assert_eq!((spans.len(), spans[0].start), (8, 0.0));
    let idle = spans.iter().find(|span| span.kind == "in no operation").unwrap();
    assert_eq!(idle.name, "after operation 3, all_reduce(10 x Float)");
}
