//! The process of one rank: started in a process group of its own, its output read, its end awaited.

use crate::caught::{self, after_name};
use crate::end::End;
use crate::guard;
use crate::output::{Printed, Sink, Stream};
use crate::said::Said;
use crate::start::StartedRank;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// How long the launcher waits for the output of a rank that has ended: a process that the rank started may keep it open for ever.
const LAST_OUTPUT: Duration = Duration::from_millis(200);

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
    /// The epoch for which the process was started.
    epoch: u32,
    /// Set when the launcher kills the process because the rank's peers have lost it.
    lost: Option<Lost>,
}

/// A process that its rank's peers had lost before it ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    /// Whether a signal such as SIGSTOP kept the process from running.
    stopped: bool,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.stopped {
            "stopped by a signal and lost by the others"
        } else {
            "lost by the others"
        })
    }
}

/// The end of one process.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub local: u32,
    pub end: End,
    /// How long the process ran.
    pub after: Duration,
    /// How the rank's peers had lost it before the process ended, if they had.
    pub lost: Option<Lost>,
    said: watch::Receiver<Said>,
}

impl Ended {
    /// The line on the rank's standard error that explains its end best: a panic, or the last line.
    pub async fn explanation(mut self) -> String {
        let all = async { while self.said.changed().await.is_ok() {} };
        let _ = timeout(LAST_OUTPUT, all).await;
        self.said.borrow().clone().cause(self.end)
    }
}

impl Process {
    /// Starts a program as a rank. Sends the end of its process to `ended`; tasks in `pumps` pass on its output.
    pub fn start(
        program: &Program<'_>,
        at: StartedRank,
        epoch: u32,
        output: Printed<'_>,
        ended: mpsc::UnboundedSender<Ended>,
        pumps: &mut JoinSet<()>,
    ) -> std::io::Result<Process> {
        let mut child = Command::from(crate::program::command()?)
            .args([OsStr::new("launch-rank"), OsStr::new(&std::process::id().to_string())])
            .args(program.command)
            .envs(program.variables.iter().map(|(name, value)| (name, value)))
            .env(guard::MARK, guard::mark())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = id.and_then(Pid::from_raw).ok_or(std::io::ErrorKind::NotFound)?;
        tracing::debug!("started rank {} as process {group} for epoch {epoch}", at.rank);
        let (heard, said) = watch::channel(Said::default());
        let out = child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        let err = child.stderr.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        let sink = |stream| Sink::new(output, at.rank, stream);
        pumps.spawn_on(
            sink(Stream::Out)?.pump(out, watch::channel(Said::default()).0),
            output.printer.pumps(),
        );
        pumps.spawn_on(sink(Stream::Err)?.pump(err, heard), output.printer.pumps());
        let since = Instant::now();
        tokio::spawn(async move {
            let end = child.wait().await.map_or(End::Code(1), End::of);
            tracing::debug!("rank {} {end}", at.rank);
            // The group is killed at once, before its number can be reused: processes that the rank started end with it.
            let _ = kill_process_group(group, Signal::KILL);
            // If the launcher has ended, the receiver is gone.
            let _ = ended.send(Ended { local: at.local, end, after: since.elapsed(), lost: None, said });
        });
        Ok(Process { group, running: true, epoch, lost: None })
    }

    /// Notes that the process has ended. Returns how the rank's peers had lost it, if they had.
    pub fn ended(&mut self) -> Option<Lost> {
        self.running = false;
        self.lost
    }

    /// Kills the process after its peers lost it in `epoch`. A process may be in a later epoch than the one it was started for, so
    /// any process started for `epoch` or earlier is meant; one started for a later epoch is its replacement and stays.
    pub fn lose(&mut self, epoch: u32) {
        if self.running && self.epoch <= epoch {
            self.lost = Some(Lost { stopped: self.is_stopped() });
            self.signal(Signal::KILL);
        }
    }

    /// Whether a signal such as SIGSTOP keeps the process from running.
    pub fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.group.as_raw_nonzero()));
        self.running && stat.is_ok_and(|stat| is_stopped(&stat))
    }

    /// Whether the process has crashed and the system writes its core dump.
    pub fn is_dumping(&self) -> bool {
        let status = caught::file(self.group.as_raw_pid(), "status");
        self.running && status.lines().any(|line| line == "CoreDumping:\t1")
    }

    /// Sends a signal to the process and to the processes that it started in its group.
    pub fn signal(&self, signal: Signal) {
        if self.running {
            // The group may have ended at this moment.
            let _ = kill_process_group(self.group, signal);
        }
    }
}

/// Whether a process is stopped, by the text of its `stat` file.
fn is_stopped(stat: &str) -> bool {
    after_name(stat).is_some_and(|rest| rest.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_is_known_whatever_its_name() {
        assert!(is_stopped("4711 (train) T 1 4711"));
        assert!(is_stopped("4711 (a ) S b) t 1 4711"));
        assert!(!is_stopped("4711 (a) T b) S 1 4711") && !is_stopped(""));
    }
}
