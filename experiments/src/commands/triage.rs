//! `allfold triage`: reads what the ranks of a job left, and names the cause of its hang or failure.

use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::{RunOutput, replace};
use allfold_report::RenderedReport;
use allfold_report::records::{TriageFound, TriageSpan};
use allfold_triage::model::DumpedJob;
use allfold_triage::{DumpReader, Hung, LaneSpan, judge, lines, starts, timeline};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Flags of `triage`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold triage logs
  allfold triage logs/start-0
  allfold triage nccl_trace_rank_0 nccl_trace_rank_1
  allfold triage dumps.tar.gz stderr.log
  allfold triage --watch /dumps
  allfold triage dumps --html hang.html

Read are Allfold's flight records, dumps of PyTorch's flight recorder (pickle or JSON, of any backend; the file name ends with
the rank), NCCL's RAS and Inspector, torchrun's error.json, and logs, as files, in folders and in archives. Flight records of Allfold
are written when a rank fails: by `allfold launch --log-dir`, or into the folder ALLFOLD_FLIGHT_DIR. A job that hangs writes
them on `kill -USR2 LAUNCHER`, and goes on, or on Ctrl-C, and ends. The command names the most likely cause with its rank,
operation and line, the evidence for and against it, and what the dumps do not tell.")]
pub(crate) struct Args {
    /// Dumps, logs, folders that hold them, or archives of them
    #[arg(required = true, value_name = "RECORDS")]
    dumps: Vec<PathBuf>,
    /// How many ranks the job has, 1 to 1048576, where the dumps do not tell: Gloo's lists no ranks of the job
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    ranks: Option<u32>,
    /// Wait for dumps, print the verdict as they arrive, and end when it is certain, or on Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Write the verdict as an HTML page with a timeline of the ranks around the hang
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Reads dumps and prints the diagnosis.
///
/// # Errors
/// A file that is no dump, or a folder without one.
pub fn run(args: &Args) -> CommandResult {
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    args.html.iter().try_for_each(|path| output.will_write(path))?;
    if args.watch {
        watch(args, &mut output)?;
    }
    let (job, earlier, notes) = gather(args)?;
    notes.iter().try_for_each(|note| output.say(note))?;
    if job.logs.is_empty() && job.words.is_empty() {
        let none = args.dumps.iter().map(|path| without(path));
        let notes: Vec<String> = none.chain(job.notes).collect();
        return Err(CommandError::usage(notes.join("; ")));
    }
    job.notes.iter().try_for_each(|note| output.say(note))?;
    let verdict = judge(&job);
    lines(&job, &verdict).iter().try_for_each(|line| output.say(line))?;
    for start in earlier {
        output.say(format!("{}: {}", start.display(), headline(&start)))?;
    }
    output.record(&TriageFound {
        hung: serde_json::to_value(verdict.hung).unwrap_or_default(),
        why: verdict.why.clone(),
        causes: verdict.causes.iter().filter_map(|cause| serde_json::to_value(cause).ok()).collect(),
        decided: verdict.decided,
        unknown: verdict.unknown.clone(),
    })?;
    if let Some(path) = &args.html {
        for LaneSpan { lane, kind, name, start, end } in timeline(&job, &verdict) {
            output.record(&TriageSpan { lane, kind: kind.into(), name, start_ms: start, end_ms: end })?;
        }
        let RenderedReport { page, .. } = allfold_report::render(&output.records()?, output.stamp())?;
        replace(path, page.as_bytes())?;
        output.say(format!("page: {}", path.display()))?;
    }
    output.close()
}

/// A job as its files show it, the folders of earlier starts, and notes about the folders.
type Gathered = (DumpedJob, Vec<PathBuf>, Vec<String>);

/// Reads all files.
fn gather(args: &Args) -> Result<Gathered, CommandError> {
    let mut reading = DumpReader::default();
    let (mut earlier, mut notes) = (Vec::new(), Vec::new());
    args.ranks.into_iter().for_each(|ranks| reading.ranks(ranks));
    for path in &args.dumps {
        let folders =
            if path.is_dir() { starts(path).map_err(|error| unread(path, &error))? } else { Vec::new() };
        reading.path(path).map_err(|error| unread(path, &error))?;
        let with: Vec<&PathBuf> = folders.iter().filter(|start| holds_records(start)).collect();
        if let Some((newest, before)) = with.split_last() {
            reading.path(newest).map_err(|error| unread(newest, &error))?;
            if folders.len() > 1 {
                notes.push(format!("of {} starts, {} is read", folders.len(), newest.display()));
            }
            earlier.extend(before.iter().map(|path| path.to_path_buf()));
        }
    }
    Ok((reading.finish().map_err(CommandError::usage)?, earlier, notes))
}

/// How often the files are looked at, in milliseconds.
const LOOK_MS: u64 = 500;
/// After so many looks without a change no more dumps are expected: a rank without one has left none.
const SETTLED: u32 = 40;

/// Prints a line whenever dumps have arrived, until the verdict is certain.
#[allow(clippy::disallowed_methods, reason = "dumps are written by other processes, at any time")]
fn watch(args: &Args, output: &mut RunOutput) -> CommandResult {
    if let Some(missing) = args.dumps.iter().find(|path| !path.exists()) {
        let what = "there is no such file or folder; --watch waits for dumps in a folder that exists";
        return Err(CommandError::usage(format!("{}: {what}", missing.display())));
    }
    let (mut seen, mut quiet, mut told) = (Vec::new(), 0, String::new());
    loop {
        let files = files(args);
        quiet = if files == seen { quiet + 1 } else { 0 };
        seen = files;
        if quiet == 0 {
            // A file that has grown since the last look is still being written.
            std::thread::sleep(std::time::Duration::from_millis(LOOK_MS));
            continue;
        }
        let read = gather(args);
        let now = read.as_ref().err().map_or(String::new(), |error| format!("; now: {error}"));
        let Some((job, ..)) = read.ok().filter(|(job, ..)| !job.logs.is_empty() || !job.words.is_empty())
        else {
            let waiting = format!("waiting for dumps{now}");
            if told.is_empty() || (!now.is_empty() && told != waiting) {
                output.say(&waiting)?;
                told = waiting;
            }
            std::thread::sleep(std::time::Duration::from_millis(LOOK_MS));
            continue;
        };
        let verdict = judge(&job);
        let said = verdict.causes.first().map_or(&verdict.why, |cause| &cause.said);
        let sure = if verdict.decided { "" } else { "undecided: " };
        let line = format!("{} of {} ranks left a dump; {sure}{said}", job.logs.len(), job.size);
        if line != told {
            output.say(&line)?;
            told = line;
        }
        if verdict.decided && verdict.hung == Hung::Yes && (job.unseen().count() == 0 || quiet >= SETTLED) {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(LOOK_MS));
    }
}

/// The files that are there, with their lengths.
fn files(args: &Args) -> Vec<(PathBuf, u64)> {
    let starts = args.dumps.iter().filter_map(|path| starts(path).ok()).flatten();
    let folders: Vec<PathBuf> = args.dumps.iter().cloned().chain(starts).collect();
    let within = folders.iter().flat_map(|path| std::fs::read_dir(path).into_iter().flatten().flatten());
    let all = within.map(|entry| entry.path()).chain(folders.iter().cloned());
    let mut all: Vec<_> = all.filter_map(|path| Some((path.clone(), path.metadata().ok()?.len()))).collect();
    all.sort();
    all
}

/// What happened in an earlier start of a job, in a line.
fn headline(start: &Path) -> String {
    let mut reading = DumpReader::default();
    let read = reading.path(start).map_err(|error| error.to_string()).and_then(|()| reading.finish());
    read.map_or_else(
        |error| error,
        |job| {
            let verdict = judge(&job);
            verdict.causes.first().map_or(verdict.why.clone(), |cause| cause.said.clone())
        },
    )
}

/// Whether a folder has a flight record, complete or not.
fn holds_records(folder: &Path) -> bool {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| name.to_string_lossy().starts_with("flight-rank-"))
}

/// That a path holds no dumps, and where output is.
fn without(path: &Path) -> String {
    let none = format!("{}: holds no flight records", path.display());
    let starts = starts(path).unwrap_or_default();
    let outputs = starts.iter().rev().map(PathBuf::as_path).chain([path]).find_map(outputs);
    outputs.map_or_else(|| none.clone(), |outputs| format!("{none}; {outputs}"))
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
    match error.kind() {
        ErrorKind::AlreadyExists => CommandError::usage(error.to_string()),
        _ => CommandError::usage(format!("{}: {error}", path.display())),
    }
}
