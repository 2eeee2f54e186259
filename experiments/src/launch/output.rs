//! What ranks print: whole lines, each with its rank in front, or in a file per rank.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// The longest piece that is held back for its end of line.
const LONGEST: u64 = 64 << 10;

/// Where the output of ranks goes.
#[derive(Clone, Debug)]
pub(super) enum Output {
    /// To the launcher's own, each line behind `[rank N]`.
    Prefixed,
    /// To `start-E/rank-N.out` and `.err` below a folder.
    Files(PathBuf),
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
}

impl Output {
    /// Makes the folder of a start.
    pub fn folder(&self, epoch: u32) -> std::io::Result<Option<PathBuf>> {
        let Output::Files(folder) = self else { return Ok(None) };
        let folder = folder.join(format!("start-{epoch}"));
        std::fs::create_dir_all(&folder)?;
        Ok(Some(folder))
    }
}

impl Sink {
    pub fn new(folder: Option<&Path>, rank: u32, stream: Stream) -> std::io::Result<Sink> {
        let ending = if stream == Stream::Out { "out" } else { "err" };
        let file = folder.map(|folder| File::create(folder.join(format!("rank-{rank}.{ending}"))));
        Ok(Sink { rank, stream, file: file.transpose()? })
    }

    /// Passes on what comes until it ends. Returns the last line that says something.
    pub async fn pump(mut self, from: impl AsyncRead + Unpin, last: tokio::sync::watch::Sender<String>) {
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
            // Whoever read it has closed it, or the disk is full: the rank goes on.
            let _ = self.put(&line);
        }
    }

    fn put(&mut self, line: &[u8]) -> std::io::Result<()> {
        if let Some(file) = &mut self.file {
            return file.write_all(line);
        }
        let mut whole = format!("[rank {}] ", self.rank).into_bytes();
        whole.extend(line);
        if !whole.ends_with(b"\n") {
            whole.push(b'\n');
        }
        match self.stream {
            Stream::Out => std::io::stdout().write_all(&whole),
            Stream::Err => std::io::stderr().write_all(&whole),
        }
    }
}
