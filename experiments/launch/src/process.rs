//! One rank's process: started in a group of its own, heard, and waited for.

use crate::end::End;
use crate::output::{Printed, Sink, Stream};
use crate::start::StartedRank;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::{OsStr, OsString};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a dead rank's output is waited for: something that it started may hold it open for ever.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The program of a rank and its environment.
#[derive(Clone, Copy)]
pub(super) struct Program<'a> {
    /// The program and its arguments.
    pub command: &'a [OsString],
    /// The variables that are added to the program's environment.
    pub variables: &'a [(&'static str, String)],
}

/// A rank's process that has been started.
pub(super) struct Process {
    pub group: Pid,
    pub running: bool,
}

/// News of one.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub local: u32,
    pub end: End,
    said: watch::Receiver<String>,
}

impl Ended {
    /// The last that it said on standard error.
    pub async fn last_words(mut self) -> String {
        let all = async { while self.said.changed().await.is_ok() {} };
        let _ = timeout(LAST_WORDS, all).await;
        self.said.borrow().clone()
    }
}

impl Process {
    /// Starts a program as a rank. Sends its end to `ended`; `pumps` pass on its output.
    pub fn start(
        program: &Program<'_>,
        at: StartedRank,
        output: Printed<'_>,
        ended: mpsc::UnboundedSender<Ended>,
        pumps: &mut JoinSet<()>,
    ) -> std::io::Result<Process> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([OsStr::new("launch-rank"), OsStr::new(&std::process::id().to_string())])
            .args(program.command)
            .envs(program.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = id.and_then(Pid::from_raw).ok_or(std::io::ErrorKind::NotFound)?;
        let (last, said) = watch::channel(String::new());
        let out = child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        let err = child.stderr.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        let sink = |stream| Sink::new(output.folder, output.printer, at.rank, stream);
        pumps.spawn_on(sink(Stream::Out)?.pump(out, watch::channel(String::new()).0), output.printer.pumps());
        pumps.spawn_on(sink(Stream::Err)?.pump(err, last), output.printer.pumps());
        tokio::spawn(async move {
            let end = child.wait().await.map_or(End::Code(1), End::of);
            // The group is killed at once, before its number can be reused: processes that the rank started end with it.
            let _ = kill_process_group(group, Signal::KILL);
            // If the launcher has ended, no one receives this.
            let _ = ended.send(Ended { local: at.local, end, said });
        });
        Ok(Process { group, running: true })
    }

    /// Sends a signal to the process and to the processes that it started in its group.
    pub fn signal(&self, signal: Signal) {
        if self.running {
            // The group may have ended at this moment.
            let _ = kill_process_group(self.group, signal);
        }
    }
}
