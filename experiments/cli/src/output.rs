//! The output of one run of a command: its text and its records.
//!
//! ```text
//! --json FILE    text to standard output, each record appended to FILE as soon as it is made
//! --json -       each record to standard output as soon as it is made, text to standard error
//! ```
//!
//! A record is appended in one write under a lock, so that concurrent runs can share a file: the file never holds half a
//! record. A run that ends early leaves the records that it had made; a run that fails before its first record leaves no file.
//! Any other file is replaced by renaming a complete new one over it. If the reader of the text closes it, a run with files to
//! write continues without printing, and fails at its end.

pub use crate::files::{can_make_folder, folder, replace, replace_all, writable};

use crate::closed_output;
use crate::error::{CommandError, CommandResult};
use crate::files::{appendable, unsaid};
use crate::invocation;
use crate::printable::printable;
use crate::recorder::{Recorder, To};
use allfold_report::records::{RecordKind, Records, Stamp};
use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// The text and the records of one run of a command.
pub struct RunOutput {
    text: Box<dyn Write>,
    recorder: Recorder,
    stamp: Stamp,
    /// Whether the text goes to standard output.
    to_stdout: bool,
    /// Whether the run still has a file to write.
    expects_file: bool,
    /// The error of writing the text, if writing failed.
    lost: Option<CommandError>,
}

impl RunOutput {
    /// Starts a run's output. A records file that cannot be written is refused here, before the work starts.
    pub fn open(json: Option<&Path>, seed: Option<u64>) -> CommandResult<RunOutput> {
        let to_stdout = json.is_some_and(|path| path == Path::new("-"));
        if let Some(path) = json.filter(|_| !to_stdout) {
            appendable(path)?;
        }
        let (text, said): (Box<dyn Write>, bool) = match invocation::keeper() {
            Some(keeper) => (Box::new(keeper), false),
            None if to_stdout => (Box::new(io::stderr()), false),
            None => (closed_output::stdout(), true),
        };
        let to = match json {
            None => To::Memory,
            Some(_) if to_stdout => To::StandardOutput,
            Some(path) => To::File(path.to_path_buf()),
        };
        let (recorder, expects_file) = (Recorder::new(to), json.is_some());
        Ok(RunOutput { text, recorder, stamp: stamp(seed), to_stdout: said, expects_file, lost: None })
    }

    /// Output of a process whose results another process reports: prints nothing and writes no records.
    pub fn silent(seed: Option<u64>) -> RunOutput {
        let (text, recorder) = (Box::new(io::sink()), Recorder::new(To::Memory));
        RunOutput { text, recorder, stamp: stamp(seed), to_stdout: false, expects_file: false, lost: None }
    }

    /// Announces a file that [`replace`] will write. A file that cannot be written is refused here, before the work starts.
    pub fn will_write(&mut self, path: &Path) -> CommandResult {
        self.expect_file();
        writable(path)
    }

    /// Announces that the run will write a file, so that the run continues even if the reader of its text closes it.
    pub fn expect_file(&mut self) {
        self.expects_file = true;
    }

    /// Refuses, before the work starts, a standard output that cannot be written. A run that also writes a file goes on without it.
    ///
    /// # Errors
    /// Standard output is closed or full.
    pub fn check_text(&self) -> CommandResult {
        match closed_output::lost().filter(|_| self.to_stdout && !self.expects_file) {
            Some(error) => Err(unsaid(&error)),
            None => Ok(()),
        }
    }

    /// Prints one or more lines.
    ///
    /// # Errors
    /// The text cannot be written, and the run has no file to write.
    pub fn say(&mut self, line: impl Display) -> CommandResult {
        let line = line.to_string();
        let said = writeln!(self.text, "{}", printable(&line)).and_then(|()| self.text.flush());
        let lost = match said {
            Ok(()) => return Ok(()),
            Err(error) => unsaid(&error),
        };
        if !self.expects_file {
            return Err(lost);
        }
        self.text = Box::new(io::sink());
        self.lost = Some(lost);
        Ok(())
    }

    /// Writes a record.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn record<R: RecordKind>(&mut self, record: &R) -> CommandResult {
        self.record_as(record, None)
    }

    /// Writes a record under another command than the running one: each part of a report names the command that makes that part
    /// alone.
    ///
    /// # Errors
    /// As [`RunOutput::record`].
    pub fn record_as<R: RecordKind>(&mut self, record: &R, command: Option<&str>) -> CommandResult {
        let stamp = Stamp { command: command.unwrap_or(&self.stamp.command).into(), ..self.stamp.clone() };
        self.recorder.record(record, &stamp)
    }

    /// A recorder for another thread, and the origin of the run's records.
    pub fn recorder(&self) -> (Recorder, Stamp) {
        (self.recorder.clone(), self.stamp.clone())
    }

    /// Sets the seed of the next records.
    pub fn seed(&mut self, seed: Option<u64>) {
        self.stamp.seed = seed;
    }

    /// The origin that every record of this run carries.
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// The records so far, as lines of JSON.
    pub fn lines(&self) -> String {
        self.recorder.lines()
    }

    /// The records so far, parsed.
    pub fn records(&self) -> CommandResult<Records> {
        Records::parse(&self.lines()).map_err(CommandError::run)
    }

    /// Ends the run.
    ///
    /// # Errors
    /// Text or a record that could not be written.
    pub fn close(self) -> CommandResult {
        if let Some(keeper) = invocation::keeper() {
            keeper.record(&self.lines());
        }
        self.recorder.close()?;
        self.lost.map_or(Ok(()), Err)
    }
}

/// The commit that this program was built from, or `unknown`.
pub const COMMIT: &str = env!("ALLFOLD_COMMIT");

fn stamp(seed: Option<u64>) -> Stamp {
    Stamp { commit: COMMIT.into(), host: host(), seed, command: command_line() }
}

fn host() -> String {
    let name =
        fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    name.map_or_else(|| "unknown".into(), |name| name.trim().to_string())
}

/// The command line, with quotes where a shell needs them.
fn command_line() -> String {
    let quoted = invocation::words().into_iter().map(|arg| {
        let arg = arg.to_string_lossy().into_owned();
        let plain =
            !arg.is_empty() && arg.chars().all(|c| c.is_ascii_alphanumeric() || "-_./,:=+[]".contains(c));
        if plain { arg } else { format!("'{}'", arg.replace('\'', r"'\''")) }
    });
    std::iter::once("allfold".to_string()).chain(quoted).collect::<Vec<_>>().join(" ")
}
