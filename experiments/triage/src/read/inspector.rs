//! NCCL Inspector: one JSON object a line for each operation that ended, one file per process. It tells who is slow, and no hang.
//!
//! Source: NCCL 2.31, `plugins/profiler/inspector/README.md`. An operation's time on a rank is that of its kernel, which waits for the other
//! ranks: the rank that comes last has the shortest.

use super::DumpReader;
use crate::model::{Log, Op, OpCall, OpState};
use allfold_base::Rank;
use serde::Deserialize;

#[derive(Deserialize)]
struct Line {
    header: Header,
    metadata: Metadata,
    coll_perf: Option<Collective>,
}

#[derive(Deserialize)]
struct Header {
    id: String,
    rank: u32,
    n_ranks: u32,
}

#[derive(Deserialize)]
struct Metadata {
    inspector_output_format_version: String,
    #[serde(default)]
    dump_timestamp_us: i64,
    #[serde(default)]
    hostname: String,
}

#[derive(Deserialize)]
struct Collective {
    coll: String,
    coll_sn: u64,
    coll_msg_size_bytes: u64,
    coll_exec_time_us: f64,
}

/// Whether a text is a file of Inspector.
pub(super) fn is_inspector(text: &str) -> bool {
    let first = text.lines().next().unwrap_or("");
    first.starts_with('{') && first.contains("\"inspector_output_format_version\"")
}

/// Adds a process's file to a reading. A line that was cut off at the end is left out.
///
/// # Errors
/// The format's major version is not 4, or there is no whole line.
pub(super) fn add(text: &str, into: &mut DumpReader) -> Result<(), String> {
    let lines: Vec<Line> = text.lines().map_while(|line| serde_json::from_str(line).ok()).collect();
    let Some(world) = lines.iter().max_by_key(|line| line.header.n_ranks) else {
        return Err("has no whole line of NCCL Inspector".into());
    };
    let version = &world.metadata.inspector_output_format_version;
    if !version.starts_with("v4.") {
        return Err(format!("has version {version} of NCCL Inspector; versions v4 are read"));
    }
    let (rank, size) = (world.header.rank, world.header.n_ranks.min(Rank::MOST));
    if into.job.logs.contains_key(&rank) {
        into.note(format!("NCCL Inspector's times of rank {rank} are left out: another dump of it is read"));
        return Ok(());
    }
    into.job.hosts.insert(rank, world.metadata.hostname.clone());
    let mut log = Log { asked: true, ..Log::default() };
    for line in &lines {
        let Some(found) = &line.coll_perf else { continue };
        let group = into
            .own_group(format!("{}{}", super::OWN, line.header.id), line.header.n_ranks.min(size) as usize);
        if let Some(place) = into.job.groups[group as usize].members.get_mut(line.header.rank as usize) {
            *place = rank;
        }
        let name = snake(&found.coll);
        let call = OpCall {
            name,
            count: found.coll_msg_size_bytes.to_string(),
            dtype: "bytes".into(),
            rest: String::new(),
        };
        let ended = line.metadata.dump_timestamp_us.saturating_mul(1000).max(1 << 60);
        log.ops.push(Op {
            group,
            sequence: found.coll_sn,
            call: into.job.calls.number(&call),
            place: 0,
            message: None,
            state: OpState::Done,
            called: ended - (found.coll_exec_time_us.clamp(0.0, 1e15) * 1e3) as i64,
            ended,
            limit_ms: 0,
        });
    }
    into.job.size = into.job.size.max(size);
    into.insert(rank, log)
}

/// `AllReduce` as `all_reduce`.
fn snake(name: &str) -> String {
    let split =
        |(at, c): (usize, char)| if at > 0 && c.is_uppercase() { format!("_{c}") } else { c.to_string() };
    name.char_indices().map(split).collect::<String>().to_lowercase()
}
