//! A flight record as a file: a line about the rank, then a line for each operation, oldest first, all of them JSON.

use crate::{Call, Rank};
use allfold_sim::Picos;
use serde::{Deserialize, Serialize};
use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format: 1.
    pub flight: u32,
    /// The rank in the world.
    pub rank: u32,
    /// Ranks of the world.
    pub size: u32,
    /// Why it was written.
    pub reason: String,
}

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Queued for the communication thread.
    Issued,
    /// The rank has entered it.
    Started,
    /// This rank's part succeeded.
    Done,
    /// This rank's part failed.
    Failed,
}

/// An operation. Times are microseconds since the start of the run, on this rank's clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The communicator: 0 is the world, another number is the same on all of its ranks.
    pub group: u64,
    /// The rank in that communicator.
    pub rank: u32,
    /// Ranks of that communicator.
    pub size: u32,
    /// The operation's number in its communicator; for point-to-point messages, among those of the pair.
    pub sequence: u64,
    /// The call.
    pub operation: String,
    /// Elements.
    pub count: u64,
    /// Their type.
    pub dtype: String,
    /// The operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<u32>,
    /// The other rank of a point-to-point message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<u32>,
    /// The algorithm.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub algorithm: String,
    /// The operation's state.
    pub state: State,
    /// When it was called.
    pub issued_us: f64,
    /// When it was entered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_us: Option<f64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_us: Option<f64>,
    /// The operation's error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Entry {
    pub(super) fn of((group, rank, size): (u64, Rank, u32), call: &Call, peer: Option<Rank>) -> Entry {
        Entry {
            group,
            rank: rank.0,
            size,
            sequence: call.sequence,
            operation: call.operation.to_string(),
            count: call.count,
            dtype: call.dtype.to_string(),
            op: call.op.map(|op| op.to_string()),
            root: call.root.map(|root| root.0),
            peer: peer.map(|peer| peer.0),
            algorithm: call.algorithm.into(),
            state: State::Issued,
            issued_us: 0.0,
            started_us: None,
            ended_us: None,
            error: None,
        }
    }

    pub(super) fn timed(mut self, state: State, times: [Option<Picos>; 3]) -> Entry {
        let [issued, started, ended] = times.map(|time| time.map(Picos::as_micros));
        self.state = state;
        (self.issued_us, self.started_us, self.ended_us) = (issued.unwrap_or_default(), started, ended);
        self
    }

    /// The arguments that must be equal on all ranks of the communicator.
    pub fn call(&self) -> String {
        let mut text = format!("{}({} x {}", self.operation, self.count, self.dtype);
        let of = [self.op.clone(), self.root.map(|root| format!("root {root}"))];
        let algorithm = Some(self.algorithm.clone()).filter(|name| !name.is_empty());
        of.into_iter().chain([algorithm]).flatten().for_each(|part| text.push_str(&format!(", {part}")));
        text.push(')');
        text
    }
}

/// A rank's record.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// About the rank.
    pub header: Header,
    /// The rank's last operations, oldest first.
    pub entries: Vec<Entry>,
}

impl Record {
    /// The name of a rank's file.
    pub fn name(rank: u32) -> String {
        format!("flight-rank-{rank}.jsonl")
    }

    /// The record files in a folder, in order of names.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn all_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
        let ours = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("flight-rank-") && name.ends_with(".jsonl")
        };
        let mut files: Vec<PathBuf> = entries.iter().map(|entry| entry.path()).filter(ours).collect();
        files.sort();
        Ok(files)
    }

    /// Writes the record into a folder, completely or not at all.
    ///
    /// # Errors
    /// The folder or the file cannot be written.
    pub fn write(&self, folder: &Path) -> std::io::Result<PathBuf> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(Record::name(self.header.rank));
        let temporary = path.with_extension(format!("{}.part", std::process::id()));
        let mut bytes = Vec::new();
        serde_json::to_writer(&mut bytes, &self.header)?;
        bytes.push(b'\n');
        for entry in &self.entries {
            serde_json::to_writer(&mut bytes, entry)?;
            bytes.push(b'\n');
        }
        std::fs::File::create(&temporary)?.write_all(&bytes)?;
        std::fs::rename(&temporary, &path)?;
        Ok(path)
    }

    /// Reads a record.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it (named) is not part of a record.
    pub fn read(path: &Path) -> std::io::Result<Record> {
        let text = std::fs::read_to_string(path)?;
        let wrong = |line: usize, why: serde_json::Error| {
            Error::new(ErrorKind::InvalidData, format!("line {line} is not of a flight record: {why}"))
        };
        let mut lines = (1..).zip(text.lines());
        let (_, first) = lines.next().ok_or_else(|| Error::new(ErrorKind::InvalidData, "it is empty"))?;
        let header: Header = serde_json::from_str(first).map_err(|why| wrong(1, why))?;
        if header.flight != 1 {
            let what = format!("it is of version {} and this program reads 1", header.flight);
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        let entries =
            lines.map(|(number, line)| serde_json::from_str(line).map_err(|why| wrong(number, why)));
        Ok(Record { header, entries: entries.collect::<std::io::Result<_>>()? })
    }
}
