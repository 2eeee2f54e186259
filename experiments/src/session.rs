//! One run of a command: where its text goes, and the records it leaves.
//!
//! ```text
//! --json FILE    text to standard output, records appended to FILE when the command ends
//! --json -       records to standard output, text to standard error
//! ```
//!
//! A file is replaced by renaming a complete new one over it, so that it never holds half a run, and what it held
//! before is kept.

use crate::failure::{Failure, Outcome};
use crate::records::{self, Record, Records, Stamp};
use std::fmt::Display;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The text and the records of one run.
pub struct Session {
    text: Box<dyn Write>,
    json: Option<PathBuf>,
    stamp: Stamp,
    lines: Vec<String>,
}

impl Session {
    /// Starts a run. A file that could not be written is refused now and not after the work.
    pub fn open(json: Option<&Path>, seed: Option<u64>) -> Outcome<Session> {
        let to_stdout = json.is_some_and(|path| path == Path::new("-"));
        if let Some(path) = json.filter(|_| !to_stdout) {
            writable(path)?;
        }
        let text: Box<dyn Write> =
            if to_stdout { Box::new(std::io::stderr()) } else { Box::new(std::io::stdout()) };
        Ok(Session { text, json: json.map(Path::to_path_buf), stamp: stamp(seed), lines: Vec::new() })
    }

    /// The run of one process of several, of which another one tells: it says nothing and leaves no records.
    pub fn silent(seed: Option<u64>) -> Session {
        Session { text: Box::new(std::io::sink()), json: None, stamp: stamp(seed), lines: Vec::new() }
    }

    /// Prints a line, or several.
    pub fn say(&mut self, line: impl Display) -> Outcome {
        writeln!(self.text, "{line}").and_then(|()| self.text.flush()).map_err(closed)
    }

    /// Keeps a record.
    pub fn record<R: Record>(&mut self, record: &R) -> Outcome {
        self.record_as(record, None)
    }

    /// Keeps a record whose command is another than the one that runs: a part of a report names the command that
    /// makes this part alone.
    pub fn record_as<R: Record>(&mut self, record: &R, command: Option<&str>) -> Outcome {
        let stamp = Stamp { command: command.unwrap_or(&self.stamp.command).into(), ..self.stamp.clone() };
        let line = records::line(record, &stamp).map_err(Failure::run)?;
        self.lines.push(line);
        Ok(())
    }

    /// The seed that the next records carry.
    pub fn seed(&mut self, seed: Option<u64>) {
        self.stamp.seed = seed;
    }

    /// Where the records come from.
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// The records so far, as lines.
    pub fn lines(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// The records so far, read back.
    pub fn records(&self) -> Outcome<Records> {
        Records::parse(&self.lines()).map_err(Failure::run)
    }

    /// Ends the run: writes the records where `--json` says.
    pub fn close(self) -> Outcome {
        match &self.json {
            None => Ok(()),
            Some(path) if path == Path::new("-") => {
                std::io::stdout().write_all(self.lines().as_bytes()).map_err(closed)
            }
            Some(path) => append(path, &self.lines()),
        }
    }
}

fn closed(error: std::io::Error) -> Failure {
    if error.kind() == ErrorKind::BrokenPipe { Failure::Closed } else { Failure::run(error) }
}

fn stamp(seed: Option<u64>) -> Stamp {
    Stamp { commit: env!("ALLFOLD_COMMIT").into(), host: host(), seed, command: command_line() }
}

fn host() -> String {
    let name =
        fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    name.map_or_else(|| "unknown".into(), |name| name.trim().to_string())
}

/// The command as it would be typed again, quoted where it must be.
fn command_line() -> String {
    let quoted = std::env::args_os().skip(1).map(|arg| {
        let arg = arg.to_string_lossy().into_owned();
        let plain =
            !arg.is_empty() && arg.chars().all(|c| c.is_ascii_alphanumeric() || "-_./,:=+[]".contains(c));
        if plain { arg } else { format!("'{}'", arg.replace('\'', r"'\''")) }
    });
    std::iter::once("allfold".to_string()).chain(quoted).collect::<Vec<_>>().join(" ")
}

/// Refuses a file that [`replace`] could not write.
pub fn writable(path: &Path) -> Outcome {
    if path == Path::new("-") {
        return Err(Failure::usage("-: standard output is for text and records; name a file"));
    }
    if path.is_dir() {
        return Err(Failure::usage(format!("{}: is a folder; name a file", path.display())));
    }
    if special(path) {
        return Ok(());
    }
    let probe = beside(path);
    let tried = fs::File::create(&probe).map(drop);
    let _ = fs::remove_file(&probe);
    tried.map_err(|error| cannot_write(path, &error))
}

fn append(path: &Path, text: &str) -> Outcome {
    let mut whole = if special(path) { String::new() } else { existing(path)? };
    if !whole.is_empty() && !whole.ends_with('\n') {
        whole.push('\n');
    }
    whole.push_str(text);
    replace(path, whole.as_bytes())
}

fn existing(path: &Path) -> Outcome<String> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(Failure::usage(format!("{}: {error}; name a file of records", path.display()))),
    }
}

/// Writes a file whole or not at all: to a temporary one beside it, then renamed.
pub fn replace(path: &Path, content: &[u8]) -> Outcome {
    if special(path) {
        return fs::write(path, content).map_err(|error| cannot_write(path, &error));
    }
    let temporary = beside(path);
    let written = fs::write(&temporary, content).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        cannot_write(path, &error)
    })
}

/// A device or a pipe cannot be replaced by renaming: it is written to.
fn special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir())
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.part", std::process::id()))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!(
        "{}: cannot be written: {error}; name a file in a folder that exists",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_records_are_appended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        fs::write(&path, "old").unwrap();
        append(&path, "new\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old\nnew\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn what_cannot_be_written_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_path_buf(), folder.path().join("no/such/file")] {
            assert!(matches!(writable(&path), Err(Failure::Usage(_))), "{}", path.display());
        }
        assert_eq!(writable(&folder.path().join("fine")), Ok(()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
