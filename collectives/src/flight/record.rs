//! A flight record as a file: a line about the rank, then a line for each operation, oldest first, all of them JSON.

use crate::{Call, Rank};
use allfold_base::utc;
use allfold_sim::{Picos, json_error, read_text_at_most};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The greatest length of a record in bytes: 512 operations take about a quarter of a mebibyte.
const LONGEST: u64 = 16 << 20;

/// The first line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format: 1.
    pub flight: u32,
    /// The rank in the world.
    pub rank: u32,
    /// The number of ranks of the world.
    pub size: u32,
    /// Why the record was written.
    pub reason: String,
    /// The training step that the rank was in, from 0, if the program has noted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The process that wrote the record, and when.
    #[serde(flatten)]
    pub writer: Option<Writer>,
}

/// The process that wrote a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    /// The host's name.
    pub host: String,
    /// The process's number on that host.
    pub pid: u32,
    /// The time of the host's clock, UTC: `2026-11-24T23:08:47Z`.
    pub time: String,
}

impl Writer {
    /// This process, now.
    #[allow(
        clippy::disallowed_types,
        reason = "says when a real process failed, for logs that have the same clock"
    )]
    pub(super) fn here() -> Writer {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let time = utc(since.map_or(0, |since| since.as_secs()));
        Writer { host: host.trim().into(), pid: std::process::id(), time }
    }
}

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The rank has called the operation and not entered it yet: it waits for the asynchronous operations before it.
    Issued,
    /// The rank has entered the operation.
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
    /// The number of ranks of that communicator.
    pub size: u32,
    /// The operation's number in its communicator; for a message, its number among the messages from its sender to its receiver.
    pub sequence: u64,
    /// The kind of the operation, such as `all_reduce`.
    pub operation: String,
    /// The number of elements.
    pub count: u64,
    /// The type of the elements.
    pub dtype: String,
    /// The reduction operator, if the collective reduces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The root, if the collective has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<u32>,
    /// The other rank of a point-to-point message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<u32>,
    /// The name of the algorithm; empty if there is no choice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub algorithm: String,
    /// How far the operation got.
    pub state: State,
    /// When the operation was called.
    pub issued_us: f64,
    /// When the rank entered the operation; `None` if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_us: Option<f64>,
    /// When the operation ended; `None` if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_us: Option<f64>,
    /// The operation's error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The training step in which the operation was called, from 0, if the program has noted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
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
            step: None,
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

/// The flight record of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The first line of the file: the rank, the world size and the reason of the record.
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
        Record::files(folder, ".jsonl")
    }

    /// The record files in a folder that were never completed, in order of names.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn parts_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
        Record::files(folder, ".part")
    }

    fn files(folder: &Path, ending: &str) -> std::io::Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
        let ours = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("flight-rank-") && name.ends_with(ending)
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
        // Removes a file or a link that an earlier process with that number has left: `create_new` refuses both.
        let _ = std::fs::remove_file(&temporary);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary);
        let written = file
            .and_then(|mut file| file.write_all(&bytes))
            .and_then(|()| std::fs::rename(&temporary, &path));
        if let Err(error) = written {
            // The error of the write is returned, not an error of this removal.
            let _ = std::fs::remove_file(&temporary);
            return Err(error);
        }
        Ok(path)
    }

    /// Reads a record.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it (named) is not part of a record.
    pub fn read(path: &Path) -> std::io::Result<Record> {
        Record::parse(&read_text_at_most(path, LONGEST, "a flight record")?)
    }

    /// Reads the text of a record.
    ///
    /// # Errors
    /// A line of the text (named) is not part of a record.
    pub fn parse(text: &str) -> std::io::Result<Record> {
        let wrong = |line: usize, why: serde_json::Error| {
            let why = json_error(&why.to_string(), Some(line));
            Error::new(ErrorKind::InvalidData, format!("it is no flight record of Allfold: {why}"))
        };
        let mut lines = (1..).zip(text.lines());
        let (_, first) = lines.next().ok_or_else(|| Error::new(ErrorKind::InvalidData, "it is empty"))?;
        let header: Header = serde_json::from_str(first).map_err(|why| wrong(1, why))?;
        if header.flight != 1 {
            let what = format!("its version is {}, and this program reads version 1", header.flight);
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        let Header { rank, size, .. } = header;
        if size > Rank::MOST || rank >= size {
            let what = format!(
                "it is of rank {rank} of {size}; a world has 1 to {} ranks, numbered from 0",
                Rank::MOST
            );
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        let entries =
            lines.map(|(number, line)| serde_json::from_str(line).map_err(|why| wrong(number, why)));
        Ok(Record { header, entries: entries.collect::<std::io::Result<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_cannot_be_written_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let header = Header {
            flight: 1,
            rank: 3,
            size: 4,
            reason: "lost".into(),
            step: Some(7),
            writer: Some(Writer::here()),
        };
        let record = Record { header, entries: Vec::new() };
        // A folder has the name that the file should get.
        let path = folder.path().join(Record::name(3));
        std::fs::create_dir(&path).unwrap();
        record.write(folder.path()).unwrap_err();
        assert!(Record::parts_in(folder.path()).unwrap().is_empty());
        std::fs::remove_dir(&path).unwrap();
        assert_eq!(Record::read(&record.write(folder.path()).unwrap()).unwrap(), record);
        // Records of older versions, without the process that wrote them, can still be read.
        std::fs::write(&path, "{\"flight\":1,\"rank\":3,\"size\":4,\"reason\":\"lost\"}\n").unwrap();
        let Header { step, writer, .. } = Record::read(&path).unwrap().header;
        assert_eq!((step, writer), (None, None));
        for (rank, size) in [(0, 2_147_483_648_u64), (4, 4), (0, 0)] {
            let line = format!("{{\"flight\":1,\"rank\":{rank},\"size\":{size},\"reason\":\"lost\"}}\n");
            std::fs::write(&path, line).unwrap();
            let error = Record::read(&path).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("it is of rank {rank} of {size}; a world has 1 to 1048576 ranks, numbered from 0")
            );
        }
        std::fs::write(&path, "{\"flight\":1,\"rank\":3,\"size\":4,\"reason\":\"lost\"}\nlost\n").unwrap();
        let error = Record::read(&path).unwrap_err().to_string();
        assert!(
            error.starts_with("it is no flight record of Allfold: line 2, column 1: here belongs a value"),
            "{error}"
        );
    }
}
