//! What ranks print: whole lines with the rank in front, or a file for each rank and stream, or both.

use crate::error::Error;
use crate::said::Said;
use allfold_collectives::Rank;
use allfold_collectives::flight::{Record, STALLED};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

/// The most bytes of a line that are held back until the line ends.
const LONGEST: u64 = 64 << 10;

/// The most pieces that wait to be printed. A rank that prints more has to wait.
const PRINTED: usize = 64;

/// The destination of the ranks' output.
#[derive(Clone, Debug)]
pub(super) struct Output {
    /// The folder for `start-E/rank-N.out` and `.err`; `None`: the launcher prints the output, each line behind `[rank N]`.
    pub folder: Option<PathBuf>,
    /// Whether output that is written to files is printed as well.
    pub tee: bool,
    pub printer: Printer,
}

/// The destination of the output of one start's ranks.
#[derive(Clone, Copy)]
pub(super) struct Printed<'a> {
    /// The start's folder; `None`: the launcher prints the output.
    pub folder: Option<&'a Path>,
    pub tee: bool,
    pub printer: &'a Printer,
}

/// The launcher's own output, written by a thread of its own: even if its reader is slow or has stopped reading, the launcher
/// still reads messages of its ranks and signals.
#[derive(Clone, Debug)]
pub(super) struct Printer {
    send: mpsc::Sender<Print>,
    pumps: Handle,
    /// The first error of writing ranks' output.
    lost: Arc<OnceLock<std::io::Error>>,
}

#[derive(Debug)]
enum Print {
    Bytes(Stream, Vec<u8>),
    /// A rank's line that begins with `error: `.
    Error(u32, Vec<u8>),
    /// The launcher's own line.
    Said(String),
    /// Answers once everything queued before it is written.
    Mark(oneshot::Sender<()>),
}

impl Printer {
    /// `pumps`: the runtime of the tasks that pass on ranks' output.
    pub fn start(pumps: Handle, mut stdout: Box<dyn Write + Send>) -> std::io::Result<Printer> {
        let (send, mut pieces) = mpsc::channel(PRINTED);
        let lost = Arc::<OnceLock<std::io::Error>>::default();
        let loses = lost.clone();
        std::thread::Builder::new().name("launch output".into()).spawn(move || {
            // The ranks that have printed an error since the launcher's last line.
            let mut errors: BTreeMap<Vec<u8>, Vec<Rank>> = BTreeMap::new();
            while let Some(piece) = pieces.blocking_recv() {
                if matches!(piece, Print::Said(_) | Print::Mark(_)) {
                    list_same(std::mem::take(&mut errors));
                }
                // The ranks continue after an error: the reader may have closed the output, or the launcher may no longer wait.
                match piece {
                    Print::Bytes(Stream::Out, bytes) => {
                        let written = stdout.write_all(&bytes).and_then(|()| stdout.flush());
                        if let Err(error) = written {
                            loses.get_or_init(|| error);
                        }
                    }
                    Print::Bytes(Stream::Err, bytes) => _ = std::io::stderr().write_all(&bytes),
                    Print::Error(rank, line) => {
                        let text = whole(rank, &line);
                        let ranks = errors.entry(line).or_default();
                        ranks.push(Rank(rank));
                        if ranks.len() == 1 {
                            _ = std::io::stderr().write_all(&text);
                        }
                    }
                    Print::Said(line) => _ = writeln!(std::io::stderr(), "{line}"),
                    Print::Mark(done) => _ = done.send(()),
                }
            }
        })?;
        Ok(Printer { send, pumps, lost })
    }

    async fn print(&self, piece: Print) {
        // The thread lives as long as there is a sender.
        let _ = self.send.send(piece).await;
    }

    /// The runtime of the tasks that pass on ranks' output.
    pub fn pumps(&self) -> &Handle {
        &self.pumps
    }

    /// Prints a line of the launcher's own on standard error. The line is dropped if too many lines wait already.
    pub fn say(&self, line: &str) {
        let _ = self.send.try_send(Print::Said(line.into()));
    }

    /// Why output of ranks is lost, if it is.
    pub fn lost(&self) -> Option<Error> {
        self.lost.get().map(|error| match error.kind() {
            ErrorKind::BrokenPipe => Error::Closed,
            _ => Error::run(format!("the ranks' output cannot be written: {error}")),
        })
    }

    /// Whether no output waits to be written.
    pub fn is_idle(&self) -> bool {
        self.send.capacity() == PRINTED
    }

    /// Waits until all is written.
    pub async fn written(&self) {
        let (done, is_done) = oneshot::channel();
        if self.send.send(Print::Mark(done)).await.is_ok() {
            let _ = is_done.await;
        }
    }
}

/// Prints the ranks, but the first, of each error that several have.
fn list_same(errors: BTreeMap<Vec<u8>, Vec<Rank>>) {
    for mut ranks in errors.into_values().filter(|ranks| ranks.len() > 1) {
        ranks[1..].sort();
        _ = writeln!(std::io::stderr(), "[{}] the same error", Rank::list(&ranks[1..]));
    }
}

/// One of the two output streams of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// The destination of one stream of one rank.
pub(super) struct Sink {
    rank: u32,
    stream: Stream,
    file: Option<(File, PathBuf)>,
    tee: bool,
    printer: Printer,
}

impl Output {
    /// Makes the folder for the files of a start.
    pub fn folder(&self, epoch: u32) -> std::io::Result<Option<PathBuf>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let folder = folder.join(format!("start-{epoch}"));
        std::fs::create_dir_all(&folder)?;
        // A link is refused: another user who may write to the folder could have placed it to send the output elsewhere.
        if std::fs::symlink_metadata(&folder)?.is_symlink() {
            let what = format!("{} is a link", folder.display());
            return Err(std::io::Error::new(ErrorKind::InvalidInput, what));
        }
        Ok(Some(folder))
    }

    /// Whether there are flight records of this run's starts.
    pub fn has_records(&self) -> bool {
        let Some(folder) = &self.folder else { return false };
        let starts = std::fs::read_dir(folder).into_iter().flatten().flatten();
        starts
            .filter(|start| start.file_name().to_string_lossy().starts_with("start-"))
            .any(|start| Record::all_in(&start.path()).is_ok_and(|records| !records.is_empty()))
    }

    /// Says that ranks of this start have made no progress for `time`, if their flight records say so. Returns whether it was said.
    pub fn told_of_stall(&self, epoch: u32, time: Option<Duration>) -> bool {
        let (Some(folder), Some(time)) = (&self.folder, time) else { return true };
        let records = Record::all_in(&folder.join(format!("start-{epoch}"))).unwrap_or_default();
        let stalled = records
            .iter()
            .any(|path| Record::read(path).is_ok_and(|record| record.header.reason.starts_with(STALLED)));
        if stalled {
            let (time, folder) = (time.as_secs_f64(), folder.display());
            self.printer.say(&format!(
                "ranks made no progress for {time} s and wrote their flight records: allfold triage {folder}"
            ));
        }
        stalled
    }

    /// Removes the flight records of an earlier run, which would be taken for this run's. This run's own are not touched: a rank
    /// leaves a record only after all ranks, of all nodes, have been started.
    pub fn clear(&self) -> std::io::Result<()> {
        let Some(folder) = self.folder.as_ref().filter(|folder| folder.is_dir()) else { return Ok(()) };
        for start in std::fs::read_dir(folder)? {
            let start = start?;
            if !start.file_name().to_string_lossy().starts_with("start-") || !start.path().is_dir() {
                continue;
            }
            for record in Record::all_in(&start.path())?.into_iter().chain(Record::parts_in(&start.path())?) {
                match std::fs::remove_file(record) {
                    // The launcher of another node removes the same files.
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl Sink {
    pub fn new(output: Printed<'_>, rank: u32, stream: Stream) -> std::io::Result<Sink> {
        let ending = if stream == Stream::Out { "out" } else { "err" };
        let file = output.folder.map(|folder| {
            let path = folder.join(format!("rank-{rank}.{ending}"));
            Ok::<_, std::io::Error>((anew(&path)?, path))
        });
        Ok(Sink { rank, stream, file: file.transpose()?, tee: output.tee, printer: output.printer.clone() })
    }

    /// Passes on a stream until it ends, and adds each line to `said`.
    pub async fn pump(mut self, from: impl AsyncRead + Unpin, said: watch::Sender<Said>) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut from).take(LONGEST).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            said.send_modify(|said| said.add(&String::from_utf8_lossy(&line)));
            self.put(&line).await;
        }
    }

    async fn put(&mut self, line: &[u8]) {
        if let Some((file, path)) = &mut self.file {
            match file.write_all(line) {
                Ok(()) if self.tee => {}
                Ok(()) => return,
                // The disk may be full: the rank continues, and its further output is printed instead.
                Err(error) => {
                    let (path, rank) = (path.display(), self.rank);
                    let said =
                        format!("{path}: {error}; from here on the output of rank {rank} is printed here\n");
                    self.file = None;
                    self.printer.print(Print::Bytes(Stream::Err, said.into_bytes())).await;
                }
            }
        }
        let piece = match self.stream == Stream::Err && line.starts_with(b"error: ") {
            true => Print::Error(self.rank, line.to_vec()),
            false => Print::Bytes(self.stream, whole(self.rank, line)),
        };
        self.printer.print(piece).await;
    }
}

/// A line with the rank that wrote it in front.
fn whole(rank: u32, line: &[u8]) -> Vec<u8> {
    let mut whole = format!("[rank {rank}] ").into_bytes();
    whole.extend(line);
    if !whole.ends_with(b"\n") {
        whole.push(b'\n');
    }
    whole
}

/// An empty file. A link of that name is replaced: it may lead to a file that is not ours to write.
fn anew(path: &Path) -> std::io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).open(path)
}
