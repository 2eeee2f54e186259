//! The guard: a process that outlives its launcher just long enough to kill what the launcher had started.
//!
//! ```text
//! launcher  -- "+ 4711" -->  guard      a rank's process group
//!           -- "- 4711" -->             it is gone, with all of its processes
//!           -- (closed)  -->            the launcher is gone: the groups that are left are killed
//! ```
//!
//! A rank itself dies with the launcher; the guard is for what ranks started. It ignores the terminal's signals by
//! having a process group of its own.

use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeSet;
use std::io::BufRead;
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};

/// Listens on standard input until it is closed, then kills.
pub fn run() {
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
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        // An error means that the group is gone, which is what is wanted.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// The launcher's side.
pub(crate) struct Guard {
    child: Child,
    input: ChildStdin,
}

impl Guard {
    pub fn start() -> std::io::Result<Guard> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("launch-guard")
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

    pub async fn watch(&mut self, group: Pid) -> std::io::Result<()> {
        self.input.write_all(format!("+{}\n", group.as_raw_nonzero()).as_bytes()).await
    }

    pub async fn forget(&mut self, group: Pid) {
        // If the guard is gone, it will kill nothing, and need not be told.
        let _ = self.input.write_all(format!("-{}\n", group.as_raw_nonzero()).as_bytes()).await;
    }

    /// Ends the guard once all processes have ended.
    pub async fn dismiss(mut self) {
        drop(self.input);
        let _ = self.child.wait().await;
    }
}
