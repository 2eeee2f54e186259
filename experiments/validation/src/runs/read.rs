//! Reads a file of runs in any of the layouts.

use super::facts::Facts;
use super::flaw::Flaw;
use super::reading::{LogFacts, Reading};
use super::run::Run;
use super::{contradiction, published, records, report, table};
use allfold_sim::read_at_most;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The greatest length in bytes of a file that is read whole.
const LONGEST: u64 = 16 << 20;
/// The greatest length of a log's line in bytes; what follows is not read as part of a row.
const LINE: u64 = 64 << 10;

/// Reads every run of a file. `ranks` is the number of ranks of tables that do not say theirs.
///
/// A log is read line by line, whatever its length. Files of JSON and CSV have 16 MiB at most.
///
/// # Errors
/// A file that cannot be opened, is no text or holds no run; malformed text, with its line and column; a run that contradicts
/// itself in half of its rows or more.
pub fn read(path: &Path, ranks: Option<u32>) -> Result<Reading, Flaw> {
    let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let read = match is_log(path) {
        true => log(path, &name, ranks),
        false => read_at_most(path, LONGEST, "a measured run").map_err(Flaw::whole).and_then(|bytes| {
            match bytes.iter().position(|&byte| byte == 0) {
                Some(at) => Err(binary(1 + bytes[..at].iter().filter(|&&byte| byte == b'\n').count())),
                None => parse_all(&name, &String::from_utf8_lossy(&bytes), ranks),
            }
        }),
    };
    let of_file = |reading: Reading| Reading {
        left_out: reading.left_out.into_iter().map(|flaw| flaw.of(path)).collect(),
        ..reading
    };
    read.map(of_file).map_err(|flaw| flaw.of(path))
}

/// Reads every run of a text; `name` is what the runs are called, and names the collective where a table does not.
///
/// # Errors
/// As [`read`].
pub fn parse(name: &str, text: &str) -> Result<Vec<Run>, Flaw> {
    parse_all(name, text, None).map(|reading| reading.runs)
}

pub(super) fn parse_all(name: &str, text: &str, ranks: Option<u32>) -> Result<Reading, Flaw> {
    let start = text.trim_start();
    let reading = match start.lines().next() {
        Some(first) if records::is_csv(first) => records::csv(name, start)?,
        Some(first) if first.starts_with('{') || first.trim_end() == "[" || first.starts_with("[{") => {
            match records::json(name, text) {
                Some(reading) => reading?,
                None => Reading { runs: vec![json(name, text)?], left_out: Vec::new() },
            }
        }
        _ => {
            let mut reader = table::Reader::new(name, ranks);
            text.lines().enumerate().try_for_each(|(at, line)| reader.line(at + 1, line))?;
            return reader.finish();
        }
    };
    match (reading.runs.is_empty(), reading.left_out.first()) {
        (true, Some(flaw)) => Err(flaw.clone()),
        _ => Ok(reading),
    }
}

/// Whether a file is longer than those that are read whole, and so a log.
fn is_log(path: &Path) -> bool {
    path.metadata().is_ok_and(|about| about.is_file() && about.len() > LONGEST)
}

fn binary(line: usize) -> Flaw {
    Flaw::at(
        line,
        1,
        "is no text in UTF-8: the line has a byte 0; expected what nccl-tests printed, not compressed",
    )
}

/// Reads a log line by line.
fn log(path: &Path, name: &str, ranks: Option<u32>) -> Result<Reading, Flaw> {
    let mut reader = table::Reader::new(name, ranks);
    each_line(open(path)?, |number, line| reader.line(number, line))?;
    reader.finish()
}

/// Reads what a log of NCCL (`NCCL_DEBUG=INFO`) says was set and used, line by line, whatever its length.
///
/// # Errors
/// A file that cannot be opened or is no text, or has no line of NCCL's log.
pub fn log_facts(path: &Path) -> Result<LogFacts, Flaw> {
    open(path).and_then(parse_log).map_err(|flaw| flaw.of(path))
}

/// [`log_facts`] of a log that is open.
///
/// # Errors
/// A log that is no text, or has no line of NCCL's log.
pub fn parse_log(log: impl BufRead) -> Result<LogFacts, Flaw> {
    let (mut facts, mut lines) = (Facts::default(), 0u64);
    each_line(log, |_, line| {
        lines += u64::from(line.contains("NCCL INFO"));
        facts.learn(line);
        Ok(())
    })?;
    match lines {
        0 => Err(Flaw::whole("expected lines with `NCCL INFO`, as NCCL_DEBUG=INFO prints them; it has none")),
        _ => Ok(LogFacts { env: facts.env(), used: facts.used, nics: facts.nics }),
    }
}

fn open(path: &Path) -> Result<BufReader<File>, Flaw> {
    File::open(path).map(BufReader::new).map_err(Flaw::whole)
}

/// Calls `take` with the number and the text of every line of a log, which is never held whole.
fn each_line(
    mut file: impl BufRead,
    mut take: impl FnMut(usize, &str) -> Result<(), Flaw>,
) -> Result<(), Flaw> {
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        let read = (&mut file).take(LINE).read_until(b'\n', &mut bytes).map_err(Flaw::whole)?;
        if read == 0 {
            break;
        }
        if bytes.contains(&0) {
            return Err(binary(number));
        }
        if read as u64 == LINE && bytes.last() != Some(&b'\n') {
            file.skip_until(b'\n').map_err(Flaw::whole)?;
        }
        take(number, String::from_utf8_lossy(&bytes).trim_end_matches('\n'))?;
    }
    Ok(())
}

/// Reads a published run without checking it for contradictions: for runs that tests make.
#[cfg(test)]
pub(crate) fn parse_unchecked(name: &str, text: &str) -> Result<Run, Flaw> {
    published::parse(name, text)
}

/// nccl-tests' own JSON has `results`, a published run has `rows`.
fn json(name: &str, text: &str) -> Result<Run, Flaw> {
    #[derive(Deserialize)]
    struct Keys {
        results: Option<serde::de::IgnoredAny>,
        rows: Option<serde::de::IgnoredAny>,
    }
    let keys: Keys = serde_json::from_str(text).map_err(Flaw::json)?;
    let run = match (keys.results, keys.rows) {
        (Some(_), _) => report::parse(name, text),
        (None, Some(_)) => published::parse(name, text),
        (None, None) => Err(Flaw::whole(
            "expected the `results` of nccl-tests' JSON or the `rows` of a published run; it has neither; a file on \
             hardware is given by --machine",
        )),
    }?;
    contradiction::checked(run, 1.0).map_err(Flaw::whole)
}
