//! Signals that are passed to the processes that catch them only: SIGUSR1 and SIGUSR2 end a process that does not.

use crate::end::signal_name;
use allfold_collectives::Rank;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;

/// Sends a signal to those processes of these groups that catch it. Returns for each group whether one of its processes got it.
pub(super) fn pass(groups: &[Pid], signal: Signal) -> Vec<bool> {
    let mut got = vec![false; groups.len()];
    for process in processes() {
        let of = group_in(&file(process, "stat"));
        let Some(at) = groups.iter().position(|group| of == Some(group.as_raw_pid())) else { continue };
        if catches(&file(process, "status"), signal)
            && let Some(process) = Pid::from_raw(process)
        {
            // An error means that the process has ended at this moment.
            got[at] |= kill_process(process, signal).is_ok();
        }
    }
    got
}

/// The ranks of a node that run: those that got a signal, and those that did not because none of their processes catches it.
pub(super) struct Passed {
    pub signal: Signal,
    pub got: Vec<Rank>,
    pub missed: Vec<Rank>,
}

impl fmt::Display for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (signal, got) = (signal_name(self.signal.as_raw()), self.got.len());
        let of = got + self.missed.len();
        write!(f, "passed {signal} to {got} of {of} ranks")?;
        match &self.missed[..] {
            [] => Ok(()),
            missed => write!(f, ": no process of {} catches it", Rank::list(missed)),
        }
    }
}

/// The numbers of all processes; none where the system has no list of processes.
pub(super) fn processes() -> Vec<i32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The text of a file about a process; empty if the process has ended.
pub(super) fn file(process: i32, name: &str) -> String {
    let text = std::fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// The text of a process's `stat` file after its name, which is in parentheses and may hold anything: state, parent, group, ...
pub(super) fn after_name(stat: &str) -> Option<&str> {
    stat.rsplit_once(") ").map(|(_, rest)| rest)
}

/// A process's group, by the text of its `stat` file.
fn group_in(stat: &str) -> Option<i32> {
    after_name(stat)?.split(' ').nth(2)?.parse().ok()
}

/// A process's set of signals after `name`, a bit for each, from the text of its `status` file.
pub(super) fn signals_in(status: &str, name: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix(name));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whether a process catches a signal, by the text of its `status` file.
fn catches(status: &str, signal: Signal) -> bool {
    signals_in(status, "SigCgt:") & 1 << (signal.as_raw() - 1) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_s_group_and_its_handlers_are_read() {
        assert_eq!(group_in("4711 (a ) S b) t 1 4700 4700 0"), Some(4700));
        assert_eq!(group_in(""), None);
        let status = "SigIgn:\t0000000000000800\nSigCgt:\t0000000000000201\n";
        assert!(catches(status, Signal::HUP) && catches(status, Signal::USR1));
        assert!(!catches(status, Signal::USR2) && !catches("", Signal::HUP));
    }
}
