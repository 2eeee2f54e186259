//! PyTorch's flight recorder: one dump per rank, as a pickle or as JSON, of version 2.1 to 2.10.
//!
//! ```text
//! { version, pg_config: { name: { desc, ranks } }, pg_status: { id: { last_enqueued_collective, .. } }, entries: [ .. ] }
//! ```
//!
//! Source: PyTorch 2.15, `torch/csrc/distributed/c10d/FlightRecorder.hpp`. Gloo's recorder has no events: each of its entries stays
//! "scheduled", and `retired` says that the operation has ended. It lists the ranks of the latest group alone, under an empty name, and
//! records no sends and receives, though they count in `pg_status`.

use super::DumpReader;
use crate::model::{Log, MessageEnd, Op, OpCall, OpState, RankGroup};
use allfold_base::Rank;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The minor versions that are known: of newer ones a note is printed.
const NEWEST: u32 = 10;

#[derive(Deserialize)]
pub(super) struct Dump<'a> {
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(default, borrow)]
    pg_config: BTreeMap<Cow<'a, str>, Config>,
    #[serde(default)]
    pg_status: BTreeMap<String, BTreeMap<String, Number>>,
    #[serde(default, borrow)]
    entries: Vec<Entry<'a>>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    desc: String,
    #[serde(default)]
    ranks: Ranks,
}

/// A list of ranks, which both writers write as a text.
#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Ranks {
    Text(String),
    List(Vec<u32>),
    #[default]
    None,
}

/// A number, which the JSON writer writes as a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Whole(i64),
    Text(String),
    Other(IgnoredAny),
}

impl Number {
    fn value(&self) -> i64 {
        match self {
            Number::Whole(value) => *value,
            Number::Text(text) => text.parse().unwrap_or(-1),
            Number::Other(_) => -1,
        }
    }
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(default)]
    record_id: u64,
    #[serde(default)]
    pg_id: u64,
    #[serde(default, borrow)]
    process_group: (Cow<'a, str>, Cow<'a, str>),
    #[serde(alias = "seq_id")]
    collective_seq_id: u64,
    #[serde(borrow)]
    profiling_name: Cow<'a, str>,
    #[serde(default)]
    is_p2p: bool,
    #[serde(default)]
    input_sizes: Vec<Vec<i64>>,
    #[serde(default)]
    output_sizes: Vec<Vec<i64>>,
    #[serde(default, borrow)]
    input_dtypes: Vec<Cow<'a, str>>,
    #[serde(borrow)]
    state: Cow<'a, str>,
    #[serde(default, deserialize_with = "nullable")]
    time_created_ns: i64,
    #[serde(default, deserialize_with = "nullable")]
    time_discovered_started_ns: i64,
    #[serde(default, deserialize_with = "nullable")]
    time_discovered_completed_ns: i64,
    #[serde(default)]
    retired: bool,
    #[serde(default)]
    timeout_ms: i64,
    #[serde(default, borrow)]
    frames: Vec<Frame<'a>>,
}

#[derive(Deserialize)]
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

impl Dump<'_> {
    /// Adds the dump of a rank to a reading.
    ///
    /// # Errors
    /// The dump's major version is not 2, or its ranks are none.
    pub(super) fn add(self, rank: u32, written: i64, into: &mut DumpReader) -> Result<(), String> {
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
        let mut parts = self.version.split('.');
        match (number(parts.next()), number(parts.next())) {
            (Some(2), Some(minor)) if minor > NEWEST => into.note(format!(
                "dumps have version 2.{minor} of PyTorch's flight recorder; versions to 2.{NEWEST} are known, and what is newer is not read"
            )),
            (Some(2), Some(_)) => {}
            _ => return Err(format!("has version {} of PyTorch's flight recorder; versions 2.1 to 2.{NEWEST} are read", self.version)),
        }
        let lists = self.lists()?;
        let whole = self.entries.first().is_none_or(|entry| entry.record_id == 0);
        let mut log = Log { whole, written, ..Log::default() };
        // Recorders without events discover no times.
        let eventful =
            self.entries.iter().any(|e| e.time_discovered_started_ns > 0 || e.state != "scheduled");
        let mut messages: BTreeMap<(u32, MessageEnd), u64> = BTreeMap::new();
        let mut open = BTreeMap::new();
        for entry in &self.entries {
            let group = into.group(&entry.process_group, &lists);
            let state = match (&*entry.state, entry.retired) {
                ("completed", _) => OpState::Done,
                (_, true) if !eventful => OpState::Done,
                (_, true) => OpState::Failed,
                ("started", _) => OpState::Started,
                _ => OpState::Called,
            };
            *open.entry(entry.pg_id).or_insert(0) += i64::from(state != OpState::Done);
            let (call, peers) = entry.call();
            if call.name == "coalesced" && entry.is_p2p {
                continue;
            }
            let message = peers.map(|message| into.in_world(group, message));
            let sequence = match message {
                Some(message) => {
                    let count = messages.entry((group, message)).or_default();
                    *count += 1;
                    *count - 1
                }
                None => entry.collective_seq_id,
            };
            let op = Op {
                group,
                sequence,
                call: into.job.calls.number(&call),
                place: into
                    .place(entry.frames.iter().map(|frame| (&*frame.name, &*frame.filename, frame.line))),
                message,
                state,
                called: entry.time_created_ns,
                ended: entry.time_discovered_completed_ns,
                limit_ms: u32::try_from(entry.timeout_ms).unwrap_or(0),
            };
            log.ops.push(op);
        }
        log.in_unrecorded = !eventful && self.is_in_unrecorded(&open);
        into.insert(rank, log)
    }

    /// Whether some group has begun more calls than it ended, and no entry of it is open.
    fn is_in_unrecorded(&self, open: &BTreeMap<u64, i64>) -> bool {
        self.pg_status.iter().any(|(id, status)| {
            let of = |key| status.get(key).map_or(-1, Number::value);
            let listed = id.parse().ok().and_then(|id| open.get(&id)).copied().unwrap_or(0);
            of("last_enqueued_collective") - of("last_completed_collective") > listed
        })
    }

    /// The ranks of each group by name.
    fn lists(&self) -> Result<BTreeMap<String, (String, Vec<u32>)>, String> {
        let named = self.pg_config.iter().filter(|(name, _)| !name.is_empty());
        named
            .map(|(name, Config { desc, ranks })| {
                let ranks = match ranks {
                    Ranks::List(ranks) => ranks.clone(),
                    Ranks::Text(text) => {
                        let inner = text.trim_matches(['[', ']', ' ']);
                        let items = inner.split(',').map(str::trim).filter(|item| !item.is_empty());
                        items
                            .map(|item| item.parse().map_err(|_| format!("lists the ranks `{text}`")))
                            .collect::<Result<_, _>>()?
                    }
                    Ranks::None => Vec::new(),
                };
                match ranks.iter().find(|rank| **rank >= Rank::MOST) {
                    Some(rank) => Err(format!("has a rank {rank}; a job has at most {} ranks", Rank::MOST)),
                    None => Ok((name.to_string(), (desc.clone(), ranks))),
                }
            })
            .collect()
    }
}

impl Entry<'_> {
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
        let elements = |shape: &Vec<i64>| {
            shape.iter().fold(1_i64, |product, size| product.saturating_mul(*size)).to_string()
        };
        let count =
            sizes.map(|sizes| sizes.iter().map(elements).collect::<Vec<_>>().join("+")).unwrap_or_default();
        let kinds: BTreeSet<&str> = self.input_dtypes.iter().map(|dtype| &**dtype).collect();
        let dtype = kinds.into_iter().collect::<Vec<_>>().join("+");
        (OpCall { name: name.trim_start_matches('_').into(), count, dtype, rest: String::new() }, message)
    }
}

impl DumpReader {
    /// The number of a group, which is one that has the same name and the same ranks.
    fn group(
        &mut self,
        (name, desc): &(Cow<'_, str>, Cow<'_, str>),
        lists: &BTreeMap<String, (String, Vec<u32>)>,
    ) -> u32 {
        let members = lists.get(&**name).map_or(Vec::new(), |(_, ranks)| ranks.clone());
        let shown = match (&**desc, &**name) {
            ("" | "undefined", name) => format!("group {name}"),
            (desc, _) => desc.to_string(),
        };
        // A process that splits groups gives several of them one name, each with other ranks of the job.
        let key = (format!("{name}/{desc}"), members.clone());
        if let Some(known) = self.groups.get(&key) {
            return *known;
        }
        let number = self.job.groups.len() as u32;
        self.groups.insert(key, number);
        if *desc == *"default_pg" {
            self.world.insert(number);
        }
        self.job.groups.push(RankGroup { name: shown, members, ..RankGroup::default() });
        number
    }

    /// A message's peer as a rank of the job.
    fn in_world(&self, group: u32, message: MessageEnd) -> MessageEnd {
        let members = &self.job.groups[group as usize].members;
        let of = |rank: u32| members.get(rank as usize).copied().unwrap_or(rank);
        match message {
            MessageEnd::SendTo(rank) => MessageEnd::SendTo(of(rank)),
            MessageEnd::ReceiveFrom(rank) => MessageEnd::ReceiveFrom(of(rank)),
        }
    }

    /// The number of the first line of a stack that is neither PyTorch's nor Python's own.
    fn place<'a>(&mut self, frames: impl Iterator<Item = (&'a str, &'a str, i64)>) -> u32 {
        const NOT_THE_PROGRAM: [&str; 4] = ["/torch/", "/site-packages/", "/lib/python3", "<frozen"];
        let mut own = frames.filter(|(_, file, _)| !NOT_THE_PROGRAM.iter().any(|part| file.contains(part)));
        let Some((name, file, line)) = own.next() else { return self.job.places.number(&String::new()) };
        let file = file.rsplit('/').next().unwrap_or(file);
        self.job.places.number(&format!("{file}:{line} in {name}"))
    }
}
