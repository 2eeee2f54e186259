//! PyTorch's flight recorder: one dump per rank, as a pickle or as JSON, of version 2.1 to 2.10.
//!
//! ```text
//! { version, pg_config: { name: { desc, ranks } }, entries: [ .. ] }
//! ```
//!
//! Source: PyTorch 2.15, `torch/csrc/distributed/c10d/FlightRecorder.hpp`. Gloo's recorder has no events: each of its entries stays
//! "scheduled", and `retired` says that the operation has ended. It lists the ranks of the latest group alone, under an empty name, and
//! records no sends and receives, though they count in `op_id`.

use super::{DumpReader, invalid, rank_in};
use crate::model::{Log, MessageEnd, Op, OpCall, OpState, RankGroup};
use allfold_base::{Rank, json_error};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Result as Read;
use std::marker::PhantomData;

/// The minor versions that are known: of newer ones a note is printed.
const NEWEST: u32 = 10;

#[derive(Deserialize)]
struct Dump<'a> {
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(default, borrow)]
    pg_config: BTreeMap<Cow<'a, str>, Config>,
    #[serde(default, borrow)]
    entries: Vec<Entry<'a>>,
}

#[derive(Deserialize)]
struct Config {
    /// Both writers write the list as a text.
    #[serde(default)]
    ranks: Value,
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(default)]
    record_id: u64,
    #[serde(default)]
    pg_id: u64,
    #[serde(default)]
    op_id: u64,
    #[serde(default, borrow)]
    process_group: (Cow<'a, str>, Cow<'a, str>),
    #[serde(alias = "seq_id")]
    collective_seq_id: u64,
    #[serde(borrow)]
    profiling_name: Cow<'a, str>,
    #[serde(default)]
    is_p2p: bool,
    #[serde(default)]
    input_sizes: Vec<Elements>,
    #[serde(default)]
    output_sizes: Vec<Elements>,
    #[serde(default, borrow)]
    input_dtypes: Vec<Cow<'a, str>>,
    #[serde(borrow)]
    state: Cow<'a, str>,
    #[serde(default, deserialize_with = "nullable")]
    time_created_ns: i64,
    #[serde(default, deserialize_with = "nullable")]
    time_discovered_completed_ns: i64,
    #[serde(default)]
    retired: bool,
    #[serde(default)]
    timeout_ms: i64,
    #[serde(default, borrow)]
    frames: Caller<'a>,
}

/// The number of elements of a tensor, whose shape is written.
#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(from = "Vec<i64>")]
struct Elements(i64);

impl From<Vec<i64>> for Elements {
    fn from(shape: Vec<i64>) -> Elements {
        Elements(shape.into_iter().fold(1, i64::saturating_mul))
    }
}

/// The first frame of a stack that is neither PyTorch's nor Python's own.
#[derive(Default)]
struct Caller<'a>(Option<Frame<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Caller<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(CallerVisitor(PhantomData))
    }
}

struct CallerVisitor<'a>(PhantomData<&'a ()>);

impl<'de: 'a, 'a> Visitor<'de> for CallerVisitor<'a> {
    type Value = Caller<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of stack frames")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut stack: A) -> Result<Caller<'a>, A::Error> {
        const NOT_THE_PROGRAM: [&str; 4] = ["/torch/", "/site-packages/", "/lib/python3", "<frozen"];
        let own = |frame: &Frame<'_>| !NOT_THE_PROGRAM.iter().any(|part| frame.filename.contains(part));
        let mut found = None;
        while let Some(frame) = stack.next_element::<Frame<'a>>()? {
            if own(&frame) {
                found = Some(frame);
                break;
            }
        }
        // The frames after it are most of a stack, and say nothing more.
        while stack.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Caller(found))
    }
}

#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Frame<'a> {
    #[serde(default, borrow)]
    name: Cow<'a, str>,
    #[serde(default, borrow)]
    filename: Cow<'a, str>,
    #[serde(default)]
    line: i64,
}

fn nullable<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    Ok(Option::<i64>::deserialize(from)?.unwrap_or(0))
}

/// The dump of one rank, with groups, calls and places by numbers of its own.
pub(super) struct RankDump {
    rank: u32,
    minor: u32,
    log: Log,
    groups: Vec<DumpGroup>,
    calls: Vec<OpCall>,
    places: Vec<String>,
}

/// A group of a dump.
struct DumpGroup {
    name: String,
    desc: String,
    members: Vec<u32>,
}

/// Reads a file; `None` if it is no dump of PyTorch's flight recorder.
///
/// # Errors
/// The dump is damaged, its major version is not 2, or its ranks or the file's rank are none.
pub(super) fn dump(name: &str, written: i64, bytes: &[u8]) -> Read<Option<RankDump>> {
    let rank = || {
        rank_in(name).ok_or_else(|| invalid("is a dump of PyTorch's flight recorder, whose file name must end with the rank, as nccl_trace_rank_3".into()))
    };
    let is_json = || {
        let has = |key: &[u8]| bytes.windows(key.len()).any(|at| at == key);
        bytes.trim_ascii_start().starts_with(b"{")
            && !bytes.starts_with(b"{\"flight\":")
            && has(b"\"version\"")
            && has(b"\"pg_config\"")
    };
    let read = match bytes {
        [0x80, ..] => allfold_tensor_files::pickle::plain::<Dump<'_>>(bytes),
        _ if is_json() => serde_json::from_slice(bytes).map_err(|error| {
            format!("is no dump of PyTorch's flight recorder: {}", json_error(&error.to_string(), None))
        }),
        _ => return Ok(None),
    };
    let rank = rank()?;
    read.and_then(|dump| dump.of_rank(rank, written)).map(Some).map_err(invalid)
}

/// The number of a value among those that were met, and whether it is new.
fn number<K: Ord>(known: &mut BTreeMap<K, u32>, key: K) -> (u32, bool) {
    let next = known.len() as u32;
    let number = *known.entry(key).or_insert(next);
    (number, number == next)
}

impl Dump<'_> {
    fn of_rank(&self, rank: u32, written: i64) -> Result<RankDump, String> {
        let mut parts = self.version.split('.').map(str::parse);
        let (Some(Ok(2)), Some(Ok(minor))) = (parts.next(), parts.next()) else {
            return Err(format!(
                "has version {} of PyTorch's flight recorder; versions 2.1 to 2.{NEWEST} are read",
                self.version
            ));
        };
        let lists = self.lists()?;
        let whole = self.entries.first().is_none_or(|entry| entry.record_id == 0);
        let ops = Vec::with_capacity(self.entries.len());
        let log = Log { whole, written, ops, ..Log::default() };
        let mut made =
            RankDump { rank, minor, log, groups: Vec::new(), calls: Vec::new(), places: Vec::new() };
        // Recorders without events leave all operations scheduled.
        let eventful = self.entries.iter().any(|entry| entry.state != "scheduled");
        let (mut groups, mut calls, mut places) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (mut messages, mut before) = (BTreeMap::new(), BTreeMap::new());
        let mut peers = Vec::new();
        for entry in &self.entries {
            let (group, new) = number(&mut groups, &entry.process_group);
            if new {
                made.groups.push(DumpGroup::of(&entry.process_group, &lists));
            }
            let (call, new) = number(
                &mut calls,
                (&entry.input_sizes, &entry.output_sizes, &entry.input_dtypes, &entry.profiling_name),
            );
            if new {
                let (call, peer) = entry.call();
                made.calls.push(call);
                peers.push(peer);
            }
            let (place, new) = number(&mut places, entry.frames.0.as_ref());
            if new {
                made.places.push(entry.frames.0.as_ref().map_or(String::new(), Frame::told));
            }
            let state = entry.state(eventful);
            if entry.is_p2p && made.calls[call as usize].name == "coalesced" {
                continue;
            }
            let message = peers[call as usize].map(|message| made.groups[group as usize].in_world(message));
            let sequence = match message {
                Some(message) => {
                    let count = messages.entry((group, message)).or_insert(0_u64);
                    *count += 1;
                    *count - 1
                }
                None => entry.collective_seq_id,
            };
            let last = before.insert(entry.pg_id, entry.op_id);
            // Of the oldest operation it is known only if nothing was before it.
            let since = last.or(whole.then_some(0)).map(|last| entry.op_id.saturating_sub(last + 1));
            made.log.unrecorded.push(since.unwrap_or(0));
            made.log.ops.push(Op {
                group,
                sequence,
                call,
                place,
                message,
                state,
                called: entry.time_created_ns,
                ended: entry.time_discovered_completed_ns,
                limit_ms: u32::try_from(entry.timeout_ms).unwrap_or(0),
            });
        }
        let is_gloo = |entry: &Entry<'_>| entry.profiling_name.starts_with("gloo:");
        made.log.retires_failed = !eventful && self.entries.iter().any(is_gloo);
        if !self.entries.iter().all(is_gloo) || made.log.unrecorded.iter().all(|count| *count == 0) {
            made.log.unrecorded.clear();
        }
        Ok(made)
    }

    /// The ranks of each group by name.
    fn lists(&self) -> Result<BTreeMap<&str, Vec<u32>>, String> {
        let named = self.pg_config.iter().filter(|(name, _)| !name.is_empty());
        named
            .map(|(name, Config { ranks })| {
                let text = ranks.to_string();
                let inner = text.trim_matches(['"', '[', ']', ' ']);
                let items =
                    inner.split(',').map(str::trim).filter(|item| !item.is_empty() && !ranks.is_null());
                let ranks = items.map(|item| item.parse().map_err(|_| format!("lists the ranks `{inner}`")));
                let ranks: Vec<u32> = ranks.collect::<Result<_, _>>()?;
                match ranks.iter().find(|rank| **rank >= Rank::MOST) {
                    Some(rank) => Err(format!("has a rank {rank}; a job has at most {} ranks", Rank::MOST)),
                    None => Ok((&**name, ranks)),
                }
            })
            .collect()
    }
}

impl Frame<'_> {
    fn told(&self) -> String {
        let Frame { name, filename, line } = self;
        format!("{}:{line} in {name}", filename.rsplit('/').next().unwrap_or(filename))
    }
}

impl Entry<'_> {
    /// How far the rank got.
    fn state(&self, eventful: bool) -> OpState {
        match (&*self.state, self.retired) {
            ("completed", _) => OpState::Done,
            (_, true) if !eventful => OpState::Done,
            (_, true) => OpState::Failed,
            ("started", _) => OpState::Started,
            _ => OpState::Called,
        }
    }

    /// What the ranks must agree on; for a message, its peer in the group.
    fn call(&self) -> (OpCall, Option<MessageEnd>) {
        let name = self.profiling_name.split_once(':').map_or(&*self.profiling_name, |(_, name)| name);
        let (name, ends) = name.split_once(' ').unwrap_or((name, ""));
        let message = match name {
            "send" => ends.split_once("->").and_then(|(_, to)| to.parse().ok()).map(MessageEnd::SendTo),
            "recv" => {
                ends.split_once("<-").and_then(|(_, from)| from.parse().ok()).map(MessageEnd::ReceiveFrom)
            }
            _ => None,
        };
        // Ranks may give and get different numbers of elements in an all-to-all; in a gather only the root has outputs, in a scatter
        // only the root has inputs.
        let sizes = match name {
            name if name.contains("all_to_all") || name.contains("coalesced") => None,
            "scatter" | "recv" => Some(&self.output_sizes),
            _ => Some(&self.input_sizes),
        };
        let elements = |Elements(count): &Elements| count.to_string();
        let count =
            sizes.map(|sizes| sizes.iter().map(elements).collect::<Vec<_>>().join("+")).unwrap_or_default();
        let kinds: BTreeSet<&str> = self.input_dtypes.iter().map(|dtype| &**dtype).collect();
        let dtype = kinds.into_iter().collect::<Vec<_>>().join("+");
        (OpCall { name: name.trim_start_matches('_').into(), count, dtype, rest: String::new() }, message)
    }
}

impl DumpGroup {
    fn of((name, desc): &(Cow<'_, str>, Cow<'_, str>), lists: &BTreeMap<&str, Vec<u32>>) -> DumpGroup {
        let members = lists.get(&**name).cloned().unwrap_or_default();
        DumpGroup { name: name.to_string(), desc: desc.to_string(), members }
    }

    /// A message's peer as a rank of the job.
    fn in_world(&self, message: MessageEnd) -> MessageEnd {
        let of = |rank: u32| self.members.get(rank as usize).copied().unwrap_or(rank);
        match message {
            MessageEnd::SendTo(rank) => MessageEnd::SendTo(of(rank)),
            MessageEnd::ReceiveFrom(rank) => MessageEnd::ReceiveFrom(of(rank)),
        }
    }

    /// The number of a group, which is one that has the same name and the same ranks.
    fn add(self, into: &mut DumpReader) -> u32 {
        let DumpGroup { name, desc, members } = self;
        // A process that splits groups gives several of them one name, each with other ranks of the job.
        let key = (format!("{name}/{desc}"), members);
        if let Some(known) = into.groups.get(&key) {
            return *known;
        }
        let number = into.job.groups.len() as u32;
        if desc == "default_pg" {
            into.world.insert(number);
        }
        let name = if matches!(&*desc, "" | "undefined") { format!("group {name}") } else { desc };
        into.job.groups.push(RankGroup { name, members: key.1.clone(), ..RankGroup::default() });
        into.groups.insert(key, number);
        number
    }
}

impl RankDump {
    /// Adds the dump to a reading.
    ///
    /// # Errors
    /// Another dump of the rank has been added.
    pub(super) fn add(mut self, into: &mut DumpReader) -> Result<(), String> {
        if self.minor > NEWEST {
            into.note(format!(
                "dumps have version 2.{} of PyTorch's flight recorder; versions to 2.{NEWEST} are known, and what is newer is not read",
                self.minor
            ));
        }
        let groups: Vec<u32> = self.groups.into_iter().map(|group| group.add(into)).collect();
        into.job.places.number(&String::new());
        let calls: Vec<u32> = self.calls.iter().map(|call| into.job.calls.number(call)).collect();
        let places: Vec<u32> = self.places.iter().map(|place| into.job.places.number(place)).collect();
        for op in &mut self.log.ops {
            op.group = groups[op.group as usize];
            op.call = calls[op.call as usize];
            op.place = places[op.place as usize];
        }
        into.insert(self.rank, self.log)
    }
}
