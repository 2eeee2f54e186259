//! What ranks print: whole lines, each with its rank in front, or in a file per rank.

use allfold_collectives::flight::Record;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

/// The longest piece that is held back for its end of line.
const LONGEST: u64 = 64 << 10;

/// Pieces that wait to be printed. A rank that prints more waits as well.
const PRINTED: usize = 64;

/// The destination of the ranks' output.
#[derive(Clone, Debug)]
pub(super) struct Output {
    /// A folder, to `start-E/rank-N.out` and `.err` below it; none: to the launcher's own, each line behind `[rank N]`.
    pub folder: Option<PathBuf>,
    pub printer: Printer,
}

/// The destination of the output of one start's ranks.
#[derive(Clone, Copy)]
pub(super) struct Printed<'a> {
    /// The start's folder; none: the output goes to the launcher's own.
    pub folder: Option<&'a Path>,
    pub printer: &'a Printer,
}

/// The launcher's own output, written by a thread of its own: whoever reads it may be slow, or read no more, and the
/// launcher goes on hearing of its ranks and of signals.
#[derive(Clone, Debug)]
pub(super) struct Printer {
    send: mpsc::Sender<Print>,
    pumps: Handle,
}

#[derive(Debug)]
enum Print {
    Bytes(Stream, Vec<u8>),
    /// Tells that all before is written.
    Mark(oneshot::Sender<()>),
}

impl Printer {
    /// `pumps`: what runs the tasks that pass on the output of ranks.
    pub fn start(pumps: Handle) -> std::io::Result<Printer> {
        let (send, mut pieces) = mpsc::channel(PRINTED);
        std::thread::Builder::new().name("launch output".into()).spawn(move || {
            while let Some(piece) = pieces.blocking_recv() {
                // If the reader has closed the output, or the launcher no longer waits, the ranks go on.
                let _ = match piece {
                    Print::Bytes(Stream::Out, bytes) => std::io::stdout().write_all(&bytes),
                    Print::Bytes(Stream::Err, bytes) => std::io::stderr().write_all(&bytes),
                    Print::Mark(done) => {
                        let _ = done.send(());
                        Ok(())
                    }
                };
            }
        })?;
        Ok(Printer { send, pumps })
    }

    async fn print(&self, stream: Stream, bytes: Vec<u8>) {
        // The thread lives as long as there is a sender.
        let _ = self.send.send(Print::Bytes(stream, bytes)).await;
    }

    /// Where the output of ranks is passed on.
    pub fn pumps(&self) -> &Handle {
        &self.pumps
    }

    /// Says something of the launcher's own on standard error; lost where that much is waiting for its reader.
    pub fn say(&self, line: &str) {
        let _ = self.send.try_send(Print::Bytes(Stream::Err, format!("{line}\n").into_bytes()));
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

/// Which of a process' two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Err,
}

/// One stream of one rank.
pub(super) struct Sink {
    rank: u32,
    stream: Stream,
    file: Option<File>,
    printer: Printer,
}

impl Output {
    /// Makes the folder of a start.
    pub fn folder(&self, epoch: u32) -> std::io::Result<Option<PathBuf>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let folder = folder.join(format!("start-{epoch}"));
        std::fs::create_dir_all(&folder)?;
        Ok(Some(folder))
    }

    /// Removes the flight records of an earlier run, which would be taken for this one's. Of this one there are none before
    /// all of its ranks have been started.
    pub fn clear(&self) -> std::io::Result<()> {
        let Some(folder) = self.folder.as_ref().filter(|folder| folder.is_dir()) else { return Ok(()) };
        for start in std::fs::read_dir(folder)? {
            let start = start?;
            if !start.file_name().to_string_lossy().starts_with("start-") || !start.path().is_dir() {
                continue;
            }
            for record in Record::all_in(&start.path())? {
                match std::fs::remove_file(record) {
                    // Another node's launcher removes them too.
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl Sink {
    pub fn new(folder: Option<&Path>, printer: &Printer, rank: u32, stream: Stream) -> std::io::Result<Sink> {
        let ending = if stream == Stream::Out { "out" } else { "err" };
        let file = folder.map(|folder| File::create(folder.join(format!("rank-{rank}.{ending}"))));
        Ok(Sink { rank, stream, file: file.transpose()?, printer: printer.clone() })
    }

    /// Passes on a stream until it ends. Returns the last line that is not empty.
    pub async fn pump(mut self, from: impl AsyncRead + Unpin, last: watch::Sender<String>) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut from).take(LONGEST).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line);
            if !text.trim().is_empty() {
                last.send_replace(text.trim().to_string());
            }
            self.put(&line).await;
        }
    }

    async fn put(&mut self, line: &[u8]) {
        if let Some(file) = &mut self.file {
            // The disk may be full: the rank goes on.
            let _ = file.write_all(line);
            return;
        }
        let mut whole = format!("[rank {}] ", self.rank).into_bytes();
        whole.extend(line);
        if !whole.ends_with(b"\n") {
            whole.push(b'\n');
        }
        self.printer.print(self.stream, whole).await;
    }
}
