//! `allfold triage`: compares the flight records of a run, and names the operation where ranks diverged.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_collectives::flight::{Diagnosis, Header, Record, Writer, straggler, triage};
use missing::{put_nearest_first, recorded_of};
use std::path::{Path, PathBuf};

mod missing;

/// Flags of `triage`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold triage logs
  allfold triage logs/start-0
  allfold triage flight-rank-0.jsonl flight-rank-1.jsonl

Flight records are written when a rank fails: by `allfold launch --log-dir`, or into the folder ALLFOLD_FLIGHT_DIR. Of a
folder of `launch` the last start with records is read. A job that hangs writes them on `kill -USR2 LAUNCHER`, and goes on, or
on Ctrl-C, and ends. The command names the first operation in which ranks differ and the rank that the others waited for
longest, then prints each rank's last operation.")]
pub(crate) struct Args {
    /// Flight records, or folders that hold them
    #[arg(required = true, value_name = "RECORDS")]
    dumps: Vec<PathBuf>,
}

/// Reads flight records and prints the diagnosis.
///
/// # Errors
/// A file that is no record, or a folder without one.
pub fn run(args: &Args) -> CommandResult {
    let (mut records, mut found) = (Vec::new(), Found::default());
    for path in &args.dumps {
        found.look(path)?;
    }
    for file in &found.files {
        match Record::read(file) {
            Ok(record) => records.push(record),
            // A full disk or a crash leaves broken records: found in a folder, such a record is noted and left out.
            Err(error) if args.dumps.iter().all(|path| path != file) => {
                found.notes.push(format!("{}: {error}; left out", file.display()));
            }
            Err(error) => return Err(CommandError::usage(format!("{}: {error}", file.display()))),
        }
    }
    if records.is_empty() {
        let notes = if found.notes.is_empty() { "no flight records".into() } else { found.notes.join("; ") };
        return Err(CommandError::usage(notes));
    }
    records.sort_by_key(|record| record.header.rank);
    let twice = records.windows(2).find(|pair| pair[0].header.rank == pair[1].header.rank);
    if let Some([first, _]) = twice {
        let rank = first.header.rank;
        return Err(CommandError::usage(format!(
            "rank {rank} has two flight records: give the records of one start of a run"
        )));
    }
    let mut output = RunOutput::open(None, None)?;
    found.notes.iter().try_for_each(|note| output.say(note))?;
    let (mut verdict, unseen) = triage(&records);
    put_nearest_first(&mut verdict, &unseen);
    output.say(&verdict)?;
    if !unseen.is_empty() {
        let ranks: Vec<String> = unseen.iter().map(|rank| rank.to_string()).collect();
        let (ranks, they) = match &ranks[..] {
            [one] => (format!("rank {one}"), "it was killed, stopped or busy, had ended before, or was"),
            many => (
                format!("ranks {}", many.join(", ")),
                "they were killed, stopped or busy, had ended before, or were",
            ),
        };
        output.say(format!("no record of {ranks}: {they} not told of the failure"))?;
        let headline = verdict.to_string();
        for rank in &unseen {
            match recorded_of(*rank, &records) {
                Some((by, error)) if !headline.contains(error) => {
                    output.say(format!("  rank {by} recorded of rank {rank}: {error}"))?;
                }
                _ => {}
            }
        }
    }
    if let Some(straggler) = straggler(&records) {
        output.say(format!("{}{straggler}", earlier(&verdict)))?;
    }
    records.iter().try_for_each(|record| output.say(line(record)))?;
    output.close()
}

/// The start of the line about the rank that was waited for longest. Waiting in operations that ended well caused no failure, so the
/// line then begins with words that say so.
fn earlier(verdict: &Diagnosis) -> &'static str {
    match verdict {
        Diagnosis::Agreed { .. } => "",
        _ => "earlier, in the operations that ended well on all ranks, ",
    }
}

/// One rank's record in a line: the rank's last operation, why the record was written, by which process and when.
fn line(record: &Record) -> String {
    let Header { rank, reason, step, writer, .. } = &record.header;
    let last = record.entries.last().map_or_else(
        || "nothing".into(),
        |last| format!("operation {}, {}: {:?}", last.sequence, last.call(), last.state).to_lowercase(),
    );
    let step = step.map_or_else(String::new, |step| format!(" in training step {step}"));
    let writer = writer
        .as_ref()
        .map_or_else(String::new, |Writer { host, pid, time }| format!(" (process {pid} on {host}, {time})"));
    format!("  rank {rank}: last {last}{step}; written because: {reason}{writer}")
}

/// The records that the arguments name, as files or by their folders.
#[derive(Default)]
struct Found {
    files: Vec<PathBuf>,
    /// Notes to print about the files.
    notes: Vec<String>,
}

impl Found {
    /// Adds one record, the records of a folder, or those of the last start with records in a launcher's folder.
    fn look(&mut self, path: &Path) -> CommandResult {
        if !path.is_dir() {
            self.files.push(path.to_path_buf());
            return Ok(());
        }
        if self.add(path)? {
            return Ok(());
        }
        let starts = starts(path).map_err(|error| unread(path, &error))?;
        for start in starts.iter().rev() {
            if self.add(start)? {
                if starts.len() > 1 {
                    self.notes.push(format!("of {} starts, {} is read", starts.len(), start.display()));
                }
                return Ok(());
            }
        }
        let none = format!("{}: holds no flight records", path.display());
        let outputs = starts.iter().rev().map(PathBuf::as_path).chain([path]).find_map(outputs);
        Err(CommandError::usage(outputs.map_or_else(|| none.clone(), |outputs| format!("{none}; {outputs}"))))
    }

    /// Adds the records in the folder itself; returns whether it holds any, complete or not.
    fn add(&mut self, folder: &Path) -> CommandResult<bool> {
        let files = Record::all_in(folder).map_err(|error| unread(folder, &error))?;
        let parts = Record::parts_in(folder).map_err(|error| unread(folder, &error))?;
        let any = !files.is_empty() || !parts.is_empty();
        self.files.extend(files);
        let cut = parts
            .iter()
            .map(|part| format!("{}: a flight record that was not completed; left out", part.display()));
        self.notes.extend(cut);
        Ok(any)
    }
}

/// How many files with output are named at most.
const NAMED: usize = 8;

/// A sentence about the files in a folder that hold the ranks' output; `None` if there are none. Standard error comes first.
fn outputs(folder: &Path) -> Option<String> {
    let files = std::fs::read_dir(folder).ok()?.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let (rank, stream) = name.strip_prefix("rank-")?.split_once('.')?;
        let is_out = ["err", "out"].iter().position(|known| *known == stream)?;
        Some(((is_out, rank.parse::<u32>().ok()?), name, entry.metadata().ok()?.len()))
    });
    let mut files: Vec<_> = files.collect();
    files.sort();
    let (all, folder) = (files.len(), folder.display());
    let names: Vec<String> =
        files.into_iter().filter(|(.., bytes)| *bytes > 0).map(|(_, name, _)| name).collect();
    match names.len() {
        0 if all == 0 => None,
        0 => Some(format!("the ranks' output in {folder} is empty")),
        count => {
            let more = if count > NAMED { format!(" and {} more", count - NAMED) } else { String::new() };
            let names = names.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
            Some(format!("look at the ranks' output in {folder}: {names}{more} are not empty"))
        }
    }
}

fn unread(path: &Path, error: &std::io::Error) -> CommandError {
    CommandError::usage(format!("{}: {error}", path.display()))
}

/// The folders of a launcher's starts, in their order.
fn starts(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
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
