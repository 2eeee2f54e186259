//! Writes records: each as soon as it is made, from any thread of the run.

use crate::closed_output;
use crate::error::{CommandError, CommandResult};
use crate::files::{cannot_write, open_to_append, special, unsaid};
use allfold_report::records::{self, RecordKind, Stamp};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The destination of records.
#[derive(Debug)]
pub enum To {
    /// Memory only: records are kept and written nowhere.
    Memory,
    /// Standard output.
    StandardOutput,
    /// The end of a file.
    File(PathBuf),
}

/// The records of one run: written as they are made, and kept.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Mutex<Written>>);

#[derive(Debug)]
struct Written {
    to: To,
    /// The open file, from the first record on.
    file: Option<File>,
    lines: String,
    /// Why a record could not be written; later records are not written either.
    failed: Option<CommandError>,
}

impl Recorder {
    /// A recorder that writes to `to`. A file is created with the first record.
    pub fn new(to: To) -> Recorder {
        Recorder(Arc::new(Mutex::new(Written { to, file: None, lines: String::new(), failed: None })))
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        // A thread that panicked while it wrote leaves at worst one record out.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a record. A standard output that its reader has closed is an error of [`Recorder::close`], not of this function.
    ///
    /// # Errors
    /// A file or a standard output that cannot be written.
    pub fn record<R: RecordKind>(&self, record: &R, stamp: &Stamp) -> CommandResult {
        let line = records::line(record, stamp).map_err(CommandError::run)? + "\n";
        let mut written = self.written();
        written.lines.push_str(&line);
        if written.failed.is_some() {
            return Ok(());
        }
        let result = written.write(&line);
        match result {
            Ok(()) => Ok(()),
            Err(CommandError::Closed) => {
                written.failed = Some(CommandError::Closed);
                Ok(())
            }
            Err(error) => {
                written.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    /// The records so far, as lines of JSON.
    pub fn lines(&self) -> String {
        self.written().lines.clone()
    }

    /// Returns whether every record was written.
    ///
    /// # Errors
    /// The first failure to write.
    pub fn close(&self) -> CommandResult {
        self.written().failed.clone().map_or(Ok(()), Err)
    }
}

impl Written {
    fn write(&mut self, line: &str) -> CommandResult {
        match &self.to {
            To::Memory => Ok(()),
            To::StandardOutput => {
                let mut output = closed_output::stdout();
                output
                    .write_all(line.as_bytes())
                    .and_then(|()| output.flush())
                    .map_err(|error| unsaid(&error))
            }
            To::File(path) => {
                let file = match self.file.take() {
                    Some(file) => Ok(file),
                    None if special(path) => OpenOptions::new().write(true).open(path),
                    None => open_to_append(path),
                };
                let added = file.and_then(|mut file| {
                    if special(path) { file.write_all(line.as_bytes()) } else { add(&mut file, line) }
                        .map(|()| file)
                });
                self.file = Some(added.map_err(|error| cannot_write(path, &error))?);
                Ok(())
            }
        }
    }
}

/// Appends `text` in one write, which no other write can split. The lock covers the checks before and after the write.
fn add(file: &mut File, text: &str) -> io::Result<()> {
    // Not every file system has locks; without a lock, the single write must suffice.
    let locked = file.lock().is_ok();
    let written = add_locked(file, text, locked);
    if locked {
        // A file that is closed loses its lock too.
        let _ = file.unlock();
    }
    written
}

fn add_locked(file: &mut File, text: &str, locked: bool) -> io::Result<()> {
    let before = file.metadata()?.len();
    let mut last = [b'\n'];
    if before > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    let separator = if last == [b'\n'] { "" } else { "\n" };
    let written = file.write_all(format!("{separator}{text}").as_bytes());
    if written.is_err() && locked {
        let _ = file.set_len(before);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_report::records::DoctorFinding;
    use std::fs;

    fn stamp() -> Stamp {
        Stamp { commit: String::new(), host: String::new(), seed: None, command: "c".into() }
    }

    fn finding(detail: &str) -> DoctorFinding {
        DoctorFinding { item: "i".into(), found: true, detail: detail.into(), advice: None }
    }

    #[test]
    fn a_record_is_in_the_file_before_the_run_ends_and_none_makes_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        let recorder = Recorder::new(To::File(path.clone()));
        recorder.close().unwrap();
        assert!(!path.exists());
        fs::write(&path, "old").unwrap();
        recorder.record(&finding("first"), &stamp()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("old\n{") && text.ends_with("}\n"), "{text}");
        recorder.record(&finding("second"), &stamp()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 3);
        assert_eq!(recorder.lines().lines().count(), 2);
    }

    #[test]
    fn runs_side_by_side_share_a_file_of_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        let long = "x".repeat(10_000);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let recorder = Recorder::new(To::File(path.clone()));
                    (0..50).for_each(|_| recorder.record(&finding(&long), &stamp()).unwrap());
                });
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        let line = records::line(&finding(&long), &stamp()).unwrap();
        assert_eq!(text.lines().count(), 8 * 50);
        assert!(text.lines().all(|read| read == line), "a line is cut");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_told_with_the_name_of_the_file() {
        let recorder = Recorder::new(To::File("/dev/full".into()));
        let written = recorder.record(&finding("f"), &stamp());
        let Err(CommandError::Run(said)) = written else { panic!("{written:?}") };
        assert!(said.contains("/dev/full") && said.contains("No space left"), "{said}");
        assert!(recorder.close().is_err());
    }
}
