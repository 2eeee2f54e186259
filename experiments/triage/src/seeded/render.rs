//! What the ranks of a seeded job leave: dumps as PyTorch's flight recorder writes them as JSON, with stacks, and a launcher's log.

use super::dice::Dice;
use super::jobs::{Fault, SeededJob};
use super::run::{Made, Ran};
use crate::model::{MessageEnd, OpState};
use serde_json::{Value, json};

/// The ranks' files of a case: names and contents, with the time at which each was written, in nanoseconds since 1970.
pub type RankFiles = Vec<(String, i64, Vec<u8>)>;

/// When jobs start, in nanoseconds since 1970.
const START: i64 = 1_790_000_000_000_000_000;

/// How a job's recorder writes.
struct Recorder {
    version: &'static str,
    /// The most entries of a dump.
    entries: usize,
    /// Whether entries have the lines that called them: PyTorch's JSON has none.
    frames: bool,
    limit_ms: i64,
}

/// The rank of a file that is a dump.
pub(super) fn rank_of(name: &str) -> Option<u32> {
    let own = name.strip_prefix("flight-rank-").and_then(|name| name.split(['-', '.']).next());
    own.or(name.strip_prefix("nccl_trace_rank_"))?.parse().ok()
}

/// The files of a job's ranks.
pub(super) fn files(job: &SeededJob, fault: Fault, rank: u32, ran: &Ran, dice: &mut Dice) -> RankFiles {
    let dead = |of: u32| match fault {
        Fault::Died | Fault::Silent => of == rank,
        Fault::LostNode => of == rank || of == rank + 1,
        _ => false,
    };
    let mut files = RankFiles::new();
    // In some jobs the hosts' clocks differ by hours, and the ranks write at different times.
    let (differ, delay) = (dice.below(4) == 0, dice.of(&[1, 1, 60_000]));
    let recorder = Recorder {
        version: dice.of(&["2.1", "2.4", "2.9", "2.10"]),
        entries: dice.of(&[40, 200, 2000, 2000]),
        frames: dice.below(4) > 0,
        limit_ms: ran.limit_ms,
    };
    for of in (0..job.ranks).filter(|of| !dead(*of)) {
        let clock = START + if differ { (dice.below(14_400) as i64 - 7_200) * 1_000_000_000 } else { 0 };
        let fault = (of == rank).then_some(fault);
        let written = clock + ran.written + dice.below(delay) as i64 * 1_000_000;
        let dump = recorder.dump(job, of, fault, &ran.made[of as usize], clock);
        files.push((format!("nccl_trace_rank_{of}"), written, dump.to_string().into_bytes()));
    }
    let log = match fault {
        Fault::Died => {
            format!("[0]:\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : -9 (pid: 4711)\n")
        }
        Fault::Network => {
            format!("node1:4711:4712 [0] NET/IB : Got completion from peer with error 12, rank {rank}\n")
        }
        Fault::LostNode => {
            let missing = |rank: u32| json!({"rank": rank, "host": "10.0.0.7", "status": {"unresponsive": true, "considered_dead": false}});
            let report = json!({"nccl_version": "2.29.7", "communicators": [{"hash": "0x1", "size": job.ranks, "ranks": [], "missing_ranks": [missing(rank), missing(rank + 1)]}]});
            files.push(("ras.json".into(), START + ran.written, report.to_string().into_bytes()));
            return files;
        }
        _ => return files,
    };
    files.push(("launcher.log".into(), START + ran.written, log.into_bytes()));
    files
}

impl Recorder {
    fn dump(&self, job: &SeededJob, rank: u32, fault: Option<Fault>, made: &[Made], clock: i64) -> Value {
        let members = |number: usize| {
            let mut members = job.groups[number].2.clone();
            if fault == Some(Fault::GroupOfOtherRanks) && number == 0 {
                let spare = members.iter().rposition(|member| *member != rank).unwrap_or(0);
                members.remove(spare);
            }
            members
        };
        let own = |(_, (.., members)): &(usize, &(String, &str, Vec<u32>))| members.contains(&rank);
        let groups = job.groups.iter().enumerate().filter(own).map(|(number, (name, desc, _))| {
            (name.clone(), json!({"name": name, "desc": desc, "ranks": format!("{:?}", members(number))}))
        });
        let config: serde_json::Map<String, Value> = groups.collect();
        let from = made.len().saturating_sub(self.entries);
        let calls = made.iter().enumerate().skip(from);
        let entries: Vec<Value> = calls.map(|(number, call)| self.entry(job, number, call, clock)).collect();
        json!({"version": self.version, "pg_config": config, "pg_status": {}, "entries": entries})
    }

    fn entry(&self, job: &SeededJob, number: usize, call: &Made, clock: i64) -> Value {
        let act = &call.act;
        let (name, desc, members) = &job.groups[act.group];
        let within = |peer: u32| members.iter().position(|member| *member == peer).unwrap_or(0);
        let ends = match act.message {
            Some(MessageEnd::SendTo(peer)) => format!(" ?->{}", within(peer)),
            Some(MessageEnd::ReceiveFrom(peer)) => format!(" ?<-{}", within(peer)),
            None => String::new(),
        };
        let state = match call.state {
            OpState::Called => "scheduled",
            OpState::Started | OpState::Failed => "started",
            OpState::Done => "completed",
        };
        let time = |known: bool, time: i64| if known { json!(clock + time) } else { json!(0) };
        let p2p = act.message.is_some();
        // The recorder of 2024 had one number for collectives and messages, and no time-outs.
        let old = self.version == "2.1";
        let mut entry = json!({
            "record_id": number, "pg_id": act.group, "process_group": [name, desc], "is_p2p": p2p, "op_id": number + 1,
            if old { "seq_id" } else { "collective_seq_id" }: if p2p { 0 } else { call.sequence + 1 },
            "profiling_name": format!("nccl:{}{ends}", act.name), "input_sizes": [[act.count]], "output_sizes": [[act.count]],
            "input_dtypes": [act.dtype], "output_dtypes": [act.dtype], "state": state,
            "time_created_ns": clock + call.called, "time_discovered_started_ns": time(call.state != OpState::Called, call.called),
            "time_discovered_completed_ns": time(call.state == OpState::Done, call.ended),
            "retired": matches!(call.state, OpState::Done | OpState::Failed),
        });
        if !old {
            entry["timeout_ms"] = self.limit_ms.into();
        }
        if self.frames {
            entry["frames"] = json!([{"name": act.name, "filename": "/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", "line": 1},
                                     {"name": "step", "filename": "/job/train.py", "line": act.line}]);
        }
        entry
    }
}
