//! Reading: what the ranks of a job left, in files, folders and archives, each by its own reader, as one [`DumpedJob`].

mod inspector;
mod own;
mod pytorch;
mod ras;
mod words;

use crate::model::{DumpedJob, FIRST_OPEN, Log, MessageEnd, Op, RankGroup};
use crate::retired::reopen;
use allfold_base::{Rank, on_all_cores, read_at_most};
use allfold_collectives::flight::Record;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::{Path, PathBuf};

/// The greatest length of a file in bytes.
const LONGEST: u64 = 256 << 20;
/// The most files that are read.
const FILES: usize = 1 << 17;
/// How many files of a folder are in memory at once.
const BATCH: usize = 64;

/// What the names of communicators in Allfold's own records begin with.
const OWN: &str = "communicator ";

/// A job that is being read.
#[derive(Default)]
pub struct DumpReader {
    job: DumpedJob,
    /// The groups by name and list of ranks.
    groups: BTreeMap<(String, Vec<u32>), u32>,
    /// Groups of all ranks.
    world: BTreeSet<u32>,
    /// The file of each rank's dump, for errors.
    files: BTreeMap<u32, String>,
    file: String,
}

impl DumpReader {
    /// Says how many ranks the job has, for dumps that do not.
    pub fn ranks(&mut self, ranks: u32) {
        self.job.size = ranks;
    }

    /// Reads a file, a folder or an archive. A file of a folder or an archive that cannot be read is noted and left out.
    ///
    /// # Errors
    /// The path cannot be read; it names a file that is no dump; or a rank has two dumps.
    pub fn path(&mut self, path: &Path) -> Result<()> {
        if !path.is_dir() {
            let bytes = read_at_most(path, LONGEST, "a dump")?;
            return self.bytes(path, modified(path), &bytes);
        }
        let files = files_of(path)?;
        let load = |file: &PathBuf| {
            let bytes = read_at_most(file, LONGEST, "a dump")?;
            let written = modified(file);
            let dump = pytorch::dump(&named(file), written, &bytes)?;
            Ok(if dump.is_some() { (written, dump, Vec::new()) } else { (written, None, bytes) })
        };
        for batch in files.chunks(BATCH) {
            for (file, read) in batch.iter().zip(at_once(batch, load)) {
                let added = read.and_then(|(written, dump, bytes)| match dump {
                    Some(dump) => self.dump(file, dump),
                    None => self.bytes(file, written, &bytes),
                });
                self.noted(file, added)?;
            }
        }
        Ok(())
    }

    /// Adds what a file of PyTorch's flight recorder holds.
    fn dump(&mut self, path: &Path, dump: pytorch::RankDump) -> Result<()> {
        self.file = path.display().to_string();
        dump.add(self).map_err(|why| self.refused(why))
    }

    /// Notes that a file among others cannot be read. Two dumps of a rank are an error.
    fn noted(&mut self, file: &Path, read: Result<()>) -> Result<()> {
        match read {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
            Err(error) => {
                self.note(format!("{}: {error}; left out", file.display()));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// As `InvalidData`, the bytes are no dump; as `AlreadyExists`, another dump of the rank has been read.
    pub fn bytes(&mut self, path: &Path, written: i64, bytes: &[u8]) -> Result<()> {
        let name = named(path);
        if let Some(dump) = pytorch::dump(&name, written, bytes)? {
            return self.dump(path, dump);
        }
        self.file = path.display().to_string();
        let own = name.starts_with("flight-rank-");
        if own && name.ends_with(".part") {
            return Err(invalid("a flight record that was not completed".into()));
        }
        if bytes.starts_with(&[0x1f, 0x8b]) {
            return self.archive(path, flate2::read::GzDecoder::new(bytes));
        }
        if is_archive(bytes) {
            return self.archive(path, bytes);
        }
        let text = String::from_utf8_lossy(bytes);
        if own || text.starts_with("{\"flight\":") {
            let record = Record::parse(&text)?;
            return own::add(record, self).map_err(|why| self.refused(why));
        }
        if inspector::is_inspector(&text) {
            return inspector::add(&text, self).map_err(|why| self.refused(why));
        }
        match words::add(&name, &text, &mut self.job) {
            true => Ok(()),
            false => Err(invalid(match text.is_empty() {
                true => "it is empty".into(),
                false => "is no dump or log that is known: flight records of Allfold and of PyTorch, output of `ncclras`, and logs are read".into(),
            })),
        }
    }

    /// Reads the members of an archive.
    fn archive(&mut self, path: &Path, from: impl Read) -> Result<()> {
        // What is unpacked is limited as a whole: a small archive may unpack to very much.
        let mut archive = tar::Archive::new(from.take(4 * LONGEST));
        for member in archive.entries()?.take(FILES) {
            let mut member = member?;
            if !member.header().entry_type().is_file() {
                continue;
            }
            let within = path.join(member.path()?);
            let written =
                member.header().mtime().map_or(0, |seconds| (seconds as i64).saturating_mul(1_000_000_000));
            let mut bytes = Vec::new();
            (&mut member).take(LONGEST).read_to_end(&mut bytes)?;
            let read = match is_archive(&bytes) {
                true => Err(invalid("is an archive in an archive".into())),
                false => self.bytes(&within, written, &bytes),
            };
            self.noted(&within, read)?;
        }
        Ok(())
    }

    fn refused(&self, why: String) -> Error {
        match why.strip_prefix("TWICE ") {
            Some(why) => Error::new(ErrorKind::AlreadyExists, why.to_string()),
            None => invalid(why),
        }
    }

    fn note(&mut self, note: String) {
        if !self.job.notes.contains(&note) {
            self.job.notes.push(note);
        }
    }

    /// Adds a rank's dump.
    fn insert(&mut self, rank: u32, log: Log) -> std::result::Result<(), String> {
        if rank >= Rank::MOST {
            return Err(format!("is of rank {rank}; a job has at most {} ranks", Rank::MOST));
        }
        if let Some(other) = self.files.insert(rank, self.file.clone()) {
            return Err(format!(
                "TWICE rank {rank} has two flight records, {other} and {}: give the records of one start of one job",
                self.file
            ));
        }
        self.job.logs.insert(rank, log);
        Ok(())
    }

    /// The job that was read.
    ///
    /// # Errors
    /// The dumps are of several jobs.
    pub fn finish(mut self) -> std::result::Result<DumpedJob, String> {
        let listed =
            self.job.groups.iter().flat_map(|group| &group.members).filter(|rank| **rank < Rank::MOST);
        let listed = listed.map(|rank| rank + 1).max();
        let dumped = self.job.logs.keys().last().map(|rank| rank + 1);
        let worded = self
            .job
            .words
            .iter()
            .filter_map(|word| word.rank)
            .filter(|rank| *rank < Rank::MOST)
            .map(|rank| rank + 1)
            .max();
        self.job.size = self.job.size.max(listed.max(dumped).max(worded).unwrap_or(0));
        let users = self.merge()?;
        self.name_processes();
        self.own_peers();
        self.renumber();
        let size = self.job.size;
        let mut unlisted: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (number, group) in (0..).zip(&mut self.job.groups) {
            if self.world.contains(&number) && group.other_lists.is_empty() {
                group.members = (0..size).collect();
            } else if group.members.is_empty() {
                group.members = users.get(&number).cloned().unwrap_or_default();
                unlisted.entry(group.name.clone()).or_default().push(number);
            }
        }
        unlisted.values().for_each(|groups| self.complete(groups));
        reopen(&mut self.job);
        Ok(self.job)
    }

    /// Adds ranks without a dump to the group of theirs, where dumps do not list its ranks: groups of one description have the same
    /// number of ranks, and together all, so that one that is short of as many ranks as left no dump has these.
    fn complete(&mut self, groups: &[u32]) {
        let len = |group: &u32| self.job.groups[*group as usize].members.len();
        let most = groups.iter().map(len).max().unwrap_or(0);
        let unseen: Vec<u32> = self.job.unseen().collect();
        let mut short = groups.iter().filter(|group| len(group) < most);
        let all = groups.iter().map(len).sum::<usize>() + unseen.len() == self.job.size as usize;
        if let (true, Some(group), None) = (all, short.next(), short.next())
            && len(group) + unseen.len() == most
        {
            let members = &mut self.job.groups[*group as usize].members;
            members.extend(unseen);
            members.sort_unstable();
        }
    }

    /// Makes groups one that have one name, and lists of ranks that overlap: their ranks disagree about who is in the group. Returns the
    /// ranks that used each group.
    ///
    /// # Errors
    /// Several ranks have each of two lists of all ranks: the dumps are of two jobs.
    fn merge(&mut self) -> std::result::Result<BTreeMap<u32, Vec<u32>>, String> {
        let mut users: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (rank, log) in &self.job.logs {
            for op in &log.ops {
                let users = users.entry(op.group).or_default();
                if users.last() != Some(rank) {
                    users.push(*rank);
                }
            }
        }
        let count = |group: u32| users.get(&group).map_or(0, Vec::len);
        // The groups of a name that list a rank: nearly always one.
        let mut listing: BTreeMap<(&str, u32), Vec<u32>> = BTreeMap::new();
        for ((name, ranks), number) in &self.groups {
            ranks.iter().for_each(|rank| listing.entry((name, *rank)).or_default().push(*number));
        }
        let mut into: BTreeMap<u32, u32> = BTreeMap::new();
        for ((name, ranks), number) in &self.groups {
            let overlapping = ranks.iter().filter_map(|rank| listing.get(&(&**name, *rank))).flatten();
            let length = |group: u32| self.job.groups[group as usize].members.len();
            let most = overlapping.copied().max_by_key(|other| (count(*other), length(*other), *other));
            if let Some(most) = most.filter(|most| most != number) {
                if self.world.contains(number) && count(*number) > 1 && count(most) > 1 {
                    return Err(format!(
                        "the dumps are of two jobs, of {} and of {} ranks: give those of one",
                        length(most),
                        ranks.len()
                    ));
                }
                let others = self.job.groups[most as usize].other_lists.entry(ranks.clone()).or_default();
                others.extend(users.get(number).into_iter().flatten());
                into.insert(*number, most);
            }
        }
        if !into.is_empty() {
            for op in self.job.logs.values_mut().flat_map(|log| &mut log.ops) {
                op.group = into.get(&op.group).copied().unwrap_or(op.group);
            }
        }
        Ok(users)
    }

    /// Finds the ranks of processes that NCCL's RAS names by host and number.
    fn name_processes(&mut self) {
        for word in self.job.words.iter_mut().filter(|word| word.rank.is_none()) {
            let after = word.said.split_once("Process ").and_then(|(_, after)| after.split_once(" on node "));
            let process = after.and_then(|(process, after)| {
                Some((after.split_whitespace().next()?.to_string(), process.parse().ok()?))
            });
            word.rank = process.and_then(|process| self.job.processes.get(&process)).copied();
        }
    }

    /// Makes peers of messages ranks of the job: Allfold's records number them in their group.
    fn own_peers(&mut self) {
        let groups = &self.job.groups;
        let own = |group: u32, rank: u32| {
            let members = &groups[group as usize];
            let of = members.members.get(rank as usize).filter(|_| members.name.starts_with(OWN));
            of.copied().unwrap_or(rank)
        };
        for op in self.job.logs.values_mut().flat_map(|log| &mut log.ops) {
            op.message = op.message.map(|message| match message {
                MessageEnd::SendTo(peer) => MessageEnd::SendTo(own(op.group, peer)),
                MessageEnd::ReceiveFrom(peer) => MessageEnd::ReceiveFrom(own(op.group, peer)),
            });
        }
    }

    /// Numbers messages from the last one that ended, between ranks of which one has lost its oldest entries: as many ended on both ends.
    fn renumber(&mut self) {
        let pair = |rank: u32, op: &Op| match op.message? {
            MessageEnd::SendTo(peer) => Some((op.group, rank, peer)),
            MessageEnd::ReceiveFrom(peer) => Some((op.group, peer, rank)),
        };
        let all = |logs: &BTreeMap<u32, Log>| -> BTreeSet<(u32, u32, u32)> {
            let cut = logs.iter().filter(|(_, log)| !log.whole);
            cut.flat_map(|(rank, log)| log.ops.iter().filter_map(|op| pair(*rank, op))).collect()
        };
        let cut = all(&self.job.logs);
        for (rank, log) in &mut self.job.logs {
            let mut ended: BTreeMap<_, u64> = BTreeMap::new();
            let of = |op: &Op| pair(*rank, op).filter(|pair| cut.contains(pair));
            for op in log.ops.iter().filter(|op| !op.is_open()) {
                of(op).into_iter().for_each(|pair| *ended.entry(pair).or_default() += 1);
            }
            let mut next: BTreeMap<_, u64> =
                ended.into_iter().map(|(pair, ended)| (pair, FIRST_OPEN - ended)).collect();
            for op in &mut log.ops {
                if let Some(pair) = of(op) {
                    let next = next.entry(pair).or_insert(FIRST_OPEN);
                    op.sequence = *next;
                    *next += 1;
                }
            }
        }
    }

    /// The number of a group of Allfold's own records.
    fn own_group(&mut self, name: String, size: usize) -> u32 {
        let number = self.job.groups.len() as u32;
        let known = *self.groups.entry((name.clone(), Vec::new())).or_insert(number);
        if known == number {
            self.job.groups.push(RankGroup { name, members: vec![u32::MAX; size], ..RankGroup::default() });
        }
        known
    }
}

fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b]) || bytes.get(257..262) == Some(b"ustar")
}

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}

fn named(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// A function of each item, on all cores; the results in the order of the items.
pub(crate) fn at_once<T: Sync, R: Send>(items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (jobs, mut results) = (items.iter().enumerate().collect::<Vec<_>>(), Vec::with_capacity(items.len()));
    let Ok(()) = on_all_cores(
        &jobs,
        |item| of(item),
        |result| {
            results.push(result);
            Ok::<_, Infallible>(())
        },
    );
    results
}

/// The rank in the name of a dump: its last number, before an ending.
fn rank_in(name: &str) -> Option<u32> {
    let stem = name
        .strip_suffix(".json")
        .or(name.strip_suffix(".pkl"))
        .or(name.strip_suffix(".pickle"))
        .unwrap_or(name);
    let digits = stem.len() - stem.trim_end_matches(|last: char| last.is_ascii_digit()).len();
    stem[stem.len() - digits..].parse().ok()
}

/// The files of a folder, by name.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut entries =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    entries.sort();
    entries.retain(|entry| entry.is_file());
    entries.truncate(FILES);
    Ok(entries)
}

/// The files of a folder: the name, the time of writing in nanoseconds since 1970, and the bytes of each.
///
/// # Errors
/// The folder or a file cannot be read.
pub(crate) fn folder_files(folder: &Path) -> Result<Vec<(String, i64, Vec<u8>)>> {
    let read = |file: PathBuf| {
        Ok((named(&file).into_owned(), modified(&file), read_at_most(&file, LONGEST, "a dump")?))
    };
    files_of(folder)?.into_iter().map(read).collect()
}

/// When a file was written, in nanoseconds since 1970; 0 if the file system does not say.
#[allow(clippy::disallowed_types, reason = "the time at which a real process wrote its dump")]
fn modified(path: &Path) -> i64 {
    let time = path.metadata().and_then(|about| about.modified()).ok();
    let since = time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    since.and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}

/// The folders of a launcher's starts, in their order.
///
/// # Errors
/// The folder cannot be read.
pub fn starts(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut starts: Vec<(u32, PathBuf)> = std::fs::read_dir(folder)?
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("start-")?.parse().ok()?;
            Some((number, entry.path())).filter(|(_, path)| path.is_dir())
        })
        .collect();
    starts.sort();
    Ok(starts.into_iter().map(|(_, path)| path).collect())
}
