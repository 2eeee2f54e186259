//! The guard: a process that outlives its launcher just long enough to kill what the launcher had started.
//!
//! ```text
//! launcher  -- "+4711"  -->  guard      a rank's process group to watch
//!           -- "-4711"  -->             the group has ended, with all of its processes
//!           -- (closed) -->             the launcher has ended: the guard kills the groups that are left
//! ```
//!
//! A rank itself dies with the launcher; the guard kills the processes that ranks started: those in the ranks' groups, and those that left
//! the groups, which it knows by a variable of their environment. The guard has a process group of its own, so that a terminal's signals
//! do not reach it. If it is stopped, the end of the launcher continues it.

use crate::{caught, system};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::collections::BTreeSet;
use std::io::BufRead;
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};

/// The variable in the environment of every process of a launcher, by which the guard finds these processes.
pub(crate) const MARK: &str = "ALLFOLD_LAUNCHER";

/// The value of [`MARK`] for this launcher: its number and when it was started.
pub(crate) fn mark() -> String {
    let (id, stat) = (std::process::id(), caught::file(std::process::id().cast_signed(), "stat"));
    let started = caught::after_name(&stat).and_then(|rest| rest.split(' ').nth(19));
    format!("{id}-{}", started.unwrap_or_default())
}

/// Reads the numbers of groups from standard input until it is closed, then kills the groups that are left.
pub fn run() {
    // Without this a guard that is stopped kills nothing until it is continued.
    let _ = system::at_parent_s_end(Signal::CONT);
    let mut groups = BTreeSet::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let number = |text: &str| text.trim().parse::<i32>().ok();
        match (line.strip_prefix('+').and_then(number), line.strip_prefix('-').and_then(number)) {
            (Some(group), _) => _ = groups.insert(group),
            (None, Some(group)) => _ = groups.remove(&group),
            (None, None) => {}
        }
    }
    for group in groups.iter().copied().filter_map(Pid::from_raw) {
        // An error means that the group has ended already.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let marked = std::env::var(MARK).map(|mark| format!("{MARK}={mark}"));
    if let (false, Ok(marked)) = (groups.is_empty(), marked) {
        // A process may start another while it is looked for.
        for _ in 0..ROUNDS {
            if !kill_marked(&marked) {
                return;
            }
        }
    }
}

/// How many times the guard looks for processes at most.
const ROUNDS: u32 = 100;

/// Kills the processes with this variable in their environment, except this one. Returns whether there was one.
fn kill_marked(variable: &str) -> bool {
    let own = std::process::id().cast_signed();
    let has =
        |id: &i32| *id != own && caught::file(*id, "environ").split('\0').any(|found| found == variable);
    let found: Vec<Pid> = caught::processes().into_iter().filter(has).filter_map(Pid::from_raw).collect();
    found.iter().for_each(|process| _ = kill_process(*process, Signal::KILL));
    !found.is_empty()
}

/// The launcher's end of the guard.
pub(crate) struct Guard {
    child: Child,
    input: ChildStdin,
}

impl Guard {
    pub fn start() -> std::io::Result<Guard> {
        let mut child = Command::from(crate::program::command()?)
            .arg("launch-guard")
            .env(MARK, mark())
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let input = child.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        Ok(Guard { child, input })
    }

    /// The number of the guard's own process.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Adds a group.
    ///
    /// # Errors
    /// The guard has ended.
    pub async fn watch(&mut self, group: Pid) -> std::io::Result<()> {
        let id = self.id();
        let told = self.input.write_all(format!("+{}\n", group.as_raw_nonzero()).as_bytes()).await;
        told.map_err(|error| {
            let process = id.map_or_else(String::new, |id| format!(", process {id},"));
            std::io::Error::other(format!(
                "the guard of this launcher{process} has been killed ({error}); without it ranks would outlive a killed launcher: \
                 start the launcher again"
            ))
        })
    }

    pub async fn forget(&mut self, group: Pid) {
        // A guard that has ended kills nothing, so an error is ignored.
        let _ = self.input.write_all(format!("-{}\n", group.as_raw_nonzero()).as_bytes()).await;
    }

    /// Ends the guard once all processes have ended.
    pub async fn dismiss(mut self) {
        drop(self.input);
        let _ = self.child.wait().await;
    }
}
