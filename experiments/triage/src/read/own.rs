//! Allfold's own flight records: see [`allfold_collectives::flight`].

use super::DumpReader;
use crate::model::{Log, MessageEnd, Op, OpCall, OpState};
use allfold_collectives::flight::{Entry, Record, State as Recorded, Writer};

/// Why a record says that it was written, if its rank went on after writing.
const ASKED: &str = "it was asked for its record";

/// Adds a rank's record to a reading.
///
/// # Errors
/// The record is of a job of another size, or the rank has a record already.
pub(super) fn add(Record { header, entries }: Record, into: &mut DumpReader) -> Result<(), String> {
    if into.job.size != 0 && into.job.size != header.size {
        return Err(format!(
            "TWICE rank {} has a record of a job of {} ranks, and others have records of one of {}: give the records of one job",
            header.rank, header.size, into.job.size
        ));
    }
    into.job.size = header.size;
    let nanos = |us: f64| (us * 1e3) as i64;
    let mut log = Log {
        asked: header.reason.starts_with(ASKED),
        reason: header.reason,
        step: header.step,
        ..Log::default()
    };
    if let Some(Writer { host, pid, time }) = header.writer {
        log.writer = format!("process {pid} on {host}, {time}");
        into.job.hosts.insert(header.rank, host);
    }
    for entry in entries {
        let group = match entry.group {
            0 => into.own_group(String::new(), header.size as usize),
            other => {
                into.own_group(format!("{}{other:016x}", super::OWN), entry.size.min(header.size) as usize)
            }
        };
        if let Some(place) = into.job.groups[group as usize].members.get_mut(entry.rank as usize) {
            *place = header.rank;
        }
        if let Some(error) = &entry.error {
            log.errors.insert(log.ops.len() as u32, error.clone());
        }
        let state = match entry.state {
            Recorded::Issued => OpState::Called,
            Recorded::Started => OpState::Started,
            Recorded::Done => OpState::Done,
            Recorded::Failed => OpState::Failed,
        };
        let message = entry.peer.map(|peer| match &*entry.operation {
            "send" => MessageEnd::SendTo(peer),
            _ => MessageEnd::ReceiveFrom(peer),
        });
        let call = into.job.calls.number(&call(&entry));
        let (called, ended) =
            (nanos(entry.started_us.unwrap_or(entry.issued_us)), entry.ended_us.map_or(0, nanos));
        let place = into.job.places.number(&String::new());
        log.ops.push(Op {
            group,
            sequence: entry.sequence,
            call,
            place,
            message,
            state,
            called,
            ended,
            limit_ms: 0,
        });
    }
    log.whole = log.ops.iter().all(|op| op.message.is_some() || op.sequence > 0) || log.ops.len() < 512;
    into.insert(header.rank, log)
}

fn call(entry: &Entry) -> OpCall {
    let parts = [entry.op.clone(), entry.root.map(|root| format!("root {root}"))];
    let algorithm = Some(entry.algorithm.clone()).filter(|name| !name.is_empty());
    let rest = parts.into_iter().chain([algorithm]).flatten().map(|part| format!(", {part}")).collect();
    OpCall { name: entry.operation.clone(), count: entry.count.to_string(), dtype: entry.dtype.clone(), rest }
}
