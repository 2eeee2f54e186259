//! One run of a command: where its text goes, and the records it leaves.
//!
//! ```text
//! --json FILE    text to standard output, records appended to FILE when the command ends
//! --json -       records to standard output, text to standard error
//! ```
//!
//! Records are appended in one write under a lock, so that runs side by side can share a file. Any other file is
//! replaced by renaming a complete new one over it. Neither ever holds half a run. If the reader of the text has gone,
//! a run with files to write goes on without printing.

use crate::cli::error::{CommandError, CommandResult};
use allfold_report::records::{self, RecordKind, Records, Stamp};
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The text and the records of one run of a command.
pub struct RunOutput {
    text: Box<dyn Write>,
    json: Option<PathBuf>,
    stamp: Stamp,
    lines: Vec<String>,
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
        let text: Box<dyn Write> = if to_stdout { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
        let expects_file = json.is_some();
        let json = json.map(Path::to_path_buf);
        Ok(RunOutput { text, json, stamp: stamp(seed), lines: Vec::new(), expects_file, lost: None })
    }

    /// Output of a process whose results another process reports: prints nothing and writes no records.
    pub fn silent(seed: Option<u64>) -> RunOutput {
        let (text, stamp) = (Box::new(io::sink()), stamp(seed));
        RunOutput { text, json: None, stamp, lines: Vec::new(), expects_file: false, lost: None }
    }

    /// Announces a file that [`replace`] will write. A file that cannot be written is refused here, before the work starts.
    pub fn will_write(&mut self, path: &Path) -> CommandResult {
        self.expect_file();
        writable(path)
    }

    /// Announces that the run will write a file, so that the run goes on even if the reader of its text has gone.
    pub fn expect_file(&mut self) {
        self.expects_file = true;
    }

    /// Prints one or more lines.
    pub fn say(&mut self, line: impl Display) -> CommandResult {
        let said = writeln!(self.text, "{line}").and_then(|()| self.text.flush());
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

    /// Keeps a record until the run ends.
    pub fn record<R: RecordKind>(&mut self, record: &R) -> CommandResult {
        self.record_as(record, None)
    }

    /// Keeps a record under another command than the running one: each part of a report names the command that makes that part
    /// alone.
    pub fn record_as<R: RecordKind>(&mut self, record: &R, command: Option<&str>) -> CommandResult {
        let stamp = Stamp { command: command.unwrap_or(&self.stamp.command).into(), ..self.stamp.clone() };
        let line = records::line(record, &stamp).map_err(CommandError::run)?;
        self.lines.push(line);
        Ok(())
    }

    /// Sets the seed of the next records.
    pub fn seed(&mut self, seed: Option<u64>) {
        self.stamp.seed = seed;
    }

    /// What every record says of its origin.
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// The records so far, as lines of JSON.
    pub fn lines(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// The records so far, parsed.
    pub fn records(&self) -> CommandResult<Records> {
        Records::parse(&self.lines()).map_err(CommandError::run)
    }

    /// Ends the run and writes the records where `--json` says.
    pub fn close(self) -> CommandResult {
        match &self.json {
            None => {}
            Some(path) if path == Path::new("-") => {
                io::stdout().write_all(self.lines().as_bytes()).map_err(|error| unsaid(&error))?;
            }
            Some(path) => append(path, &self.lines())?,
        }
        self.lost.filter(|lost| *lost != CommandError::Closed).map_or(Ok(()), Err)
    }
}

fn unsaid(error: &io::Error) -> CommandError {
    if error.kind() == ErrorKind::BrokenPipe {
        return CommandError::Closed;
    }
    CommandError::run(format!("the output cannot be written: {error}"))
}

fn stamp(seed: Option<u64>) -> Stamp {
    Stamp { commit: env!("ALLFOLD_COMMIT").into(), host: host(), seed, command: command_line() }
}

fn host() -> String {
    let name =
        fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    name.map_or_else(|| "unknown".into(), |name| name.trim().to_string())
}

/// The command line, with quotes where a shell needs them.
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
pub fn writable(path: &Path) -> CommandResult {
    if path == Path::new("-") {
        return Err(CommandError::usage("-: standard output is for text and records; name a file"));
    }
    if path.is_dir() {
        return Err(CommandError::usage(format!("{}: is a folder; name a file", path.display())));
    }
    if special(path) {
        return Ok(());
    }
    let probe = beside(&led_to(path));
    let tried = File::create(&probe).map(drop);
    let _ = fs::remove_file(&probe);
    tried.map_err(|error| cannot_write(path, &error))
}

/// Makes a folder. Refuses a folder in which no file can be created.
pub fn folder(path: &Path) -> CommandResult {
    let probe = beside(&path.join("file"));
    let tried = fs::create_dir_all(path).and_then(|()| File::create(&probe)).map(drop);
    let _ = fs::remove_file(&probe);
    tried.map_err(|error| {
        CommandError::usage(format!(
            "{}: no files can be written there: {error}; name a folder",
            path.display()
        ))
    })
}

/// Refuses a file that [`append`] could not write.
fn appendable(path: &Path) -> CommandResult {
    if !path.is_file() {
        return writable(path);
    }
    open_to_append(path).map(drop).map_err(|error| cannot_write(path, &error))
}

fn open_to_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).open(path)
}

/// Adds all of `text` to the end of a file, or none of it.
fn append(path: &Path, text: &str) -> CommandResult {
    let added = match special(path) {
        true => fs::write(path, text),
        false => open_to_append(path).and_then(|file| add(file, text)),
    };
    added.map_err(|error| cannot_write(path, &error))
}

/// Appends `text` in one write, which no other write can split. The lock covers the checks before and after the write.
fn add(mut file: File, text: &str) -> io::Result<()> {
    // Not every file system has locks; without a lock, the single write must suffice.
    let locked = file.lock().is_ok();
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

/// Writes a file completely or not at all: writes a temporary file in the same folder, and renames it. Links to the file and
/// its permissions are kept.
pub fn replace(path: &Path, content: &[u8]) -> CommandResult {
    if special(path) {
        return fs::write(path, content).map_err(|error| cannot_write(path, &error));
    }
    let path = led_to(path);
    let temporary = beside(&path);
    let write = || {
        let mut file = File::create(&temporary)?;
        if let Ok(about) = fs::metadata(&path) {
            file.set_permissions(about.permissions())?;
        }
        file.write_all(content)?;
        fs::rename(&temporary, &path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        cannot_write(&path, &error)
    })
}

/// The file that `path` leads to through symbolic links, whether or not the file exists.
fn led_to(path: &Path) -> PathBuf {
    // Linux follows at most this many links.
    const LINKS: usize = 40;
    let mut at = path.to_path_buf();
    for _ in 0..LINKS {
        let Ok(next) = fs::read_link(&at) else { break };
        at = at.with_file_name(next);
    }
    at
}

/// Whether `path` is a device or a pipe, which cannot be replaced by renaming and is written to instead.
fn special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir())
}

fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.part", std::process::id()))
}

fn cannot_write(path: &Path, error: &io::Error) -> CommandError {
    let what = format!("{}: cannot be written: {error}", path.display());
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            CommandError::run(what)
        }
        _ => CommandError::usage(format!("{what}; name a file in a folder that exists")),
    }
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
    fn runs_side_by_side_share_a_file_of_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        let line = format!("{}\n", "x".repeat(10_000));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..50).for_each(|_| append(&path, &line).unwrap()));
            }
        });
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.len(), 8 * 50 * line.len());
        assert!(text.split_inclusive('\n').all(|read| read == line), "a line is cut");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_and_the_permissions_of_a_file_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::create_dir(folder.path().join("other")).unwrap();
        let (new, to_new) = (folder.path().join("other/new"), folder.path().join("to_new"));
        fs::write(&file, "old\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        symlink("file", &link).unwrap();
        symlink("other/new", &to_new).unwrap();
        append(&link, "new\n").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old\nnew\n");
        for (link, file) in [(&link, &file), (&to_new, &new)] {
            writable(link).unwrap();
            replace(link, b"whole").unwrap();
            assert!(link.is_symlink() && !file.is_symlink());
            assert_eq!(fs::read_to_string(file).unwrap(), "whole");
        }
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_told_with_the_name_of_the_file() {
        let full = Path::new("/dev/full");
        for written in [append(full, "line\n"), replace(full, b"whole")] {
            let Err(CommandError::Run(said)) = written else { panic!("{written:?}") };
            assert!(said.contains("/dev/full") && said.contains("No space left"), "{said}");
        }
    }

    #[test]
    fn what_cannot_be_written_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_path_buf(), folder.path().join("no/such/file")] {
            assert!(matches!(writable(&path), Err(CommandError::Usage(_))), "{}", path.display());
        }
        assert_eq!(writable(&folder.path().join("fine")), Ok(()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
