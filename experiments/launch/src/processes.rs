//! The ranks of one node in one start of the world: started together, ended together, without a process left behind.

use crate::caught;
use crate::guard::Guard;
use crate::output::{Printed, Printer};
use crate::process::{Ended, Process, Program};
use crate::start::StartedRank;
use allfold_collectives::running_time::{after, now, timeout_at};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub(super) struct Processes {
    /// The processes, by their numbers on this node.
    all: Vec<Process>,
    ended: mpsc::UnboundedReceiver<Ended>,
    tell: mpsc::UnboundedSender<Ended>,
    /// The tasks that pass on the processes' output.
    pumps: JoinSet<()>,
}

/// How long the launcher waits for output that stays open without new lines: the process that keeps it open may have left its
/// rank's process group.
const SILENCE: Duration = Duration::from_secs(1);
/// The time between two checks whether all processes that run are stopped.
const LOOK: Duration = Duration::from_millis(50);

impl Processes {
    /// The processes of a start, of which none has been started.
    pub fn new() -> Processes {
        let (tell, ended) = mpsc::unbounded_channel();
        Processes { all: Vec::new(), ended, tell, pumps: JoinSet::new() }
    }

    /// Starts the process of a rank for an epoch: this node's next rank, or again a rank whose process has ended.
    pub async fn start(
        &mut self,
        program: &Program<'_>,
        (at, epoch): (StartedRank, u32),
        output: Printed<'_>,
        guard: &mut Guard,
    ) -> std::io::Result<()> {
        let (tell, pumps) = (self.tell.clone(), &mut self.pumps);
        let process = Process::start(program, at, epoch, output, tell, pumps)?;
        guard.watch(process.group).await?;
        match self.all.get_mut(at.local as usize) {
            Some(before) => guard.forget(std::mem::replace(before, process).group).await,
            None => self.all.push(process),
        }
        Ok(())
    }

    /// Waits until the next process ends; for ever if all have ended.
    pub async fn ended(&mut self) -> Ended {
        match self.ended.recv().await {
            Some(mut ended) => {
                ended.lost = self.all[ended.local as usize].ended();
                ended
            }
            None => std::future::pending().await,
        }
    }

    /// The processes that end within this time, or that are writing a core dump then and end within `dump`: the caller looks for the
    /// cause among all that ended together.
    pub async fn soon(&mut self, within: Duration, dump: Duration) -> Vec<Ended> {
        let (due, last) = (after(within), after(dump));
        let mut found = Vec::new();
        while self.is_running() {
            match timeout_at(due.max(now().min(last)), self.ended()).await {
                Ok(ended) => found.push(ended),
                Err(_) if now() < last && self.all.iter().any(Process::is_dumping) => sleep(LOOK).await,
                Err(_) => break,
            }
        }
        found
    }

    /// Waits until all output of the processes is printed.
    pub async fn output_printed(&mut self, printer: &Printer) {
        loop {
            match timeout(SILENCE, self.pumps.join_next()).await {
                Ok(None) => return printer.written().await,
                Ok(Some(_)) => {}
                Err(_) if printer.is_idle() => return,
                Err(_) => {}
            }
        }
    }

    pub fn is_running(&self) -> bool {
        self.all.iter().any(|process| process.running)
    }

    /// Kills the process of a rank that its peers have lost in this epoch.
    pub fn lose(&mut self, local: u32, epoch: u32) {
        self.all.get_mut(local as usize).into_iter().for_each(|process| process.lose(epoch));
    }

    /// The first of the ranks, by its number on this node, that a signal such as SIGSTOP keeps from running.
    pub fn stopped(&self) -> Option<u32> {
        (0..).zip(&self.all).find_map(|(local, process)| process.is_stopped().then_some(local))
    }

    /// Whether a process runs that is not stopped.
    fn can_act(&self) -> bool {
        self.all.iter().any(|process| process.running && !process.is_stopped())
    }

    pub fn signal(&self, signal: Signal) {
        self.all.iter().for_each(|process| process.signal(signal));
    }

    /// Passes a signal to the processes that catch it. Returns for each rank that runs, by its number on this node, whether it got the
    /// signal.
    pub fn pass(&self, signal: Signal) -> Vec<(u32, bool)> {
        let running = (0..).zip(&self.all).filter(|(_, process)| process.running);
        let (ranks, groups): (Vec<u32>, Vec<Pid>) =
            running.map(|(local, process)| (local, process.group)).unzip();
        ranks.into_iter().zip(caught::pass(&groups, signal)).collect()
    }

    /// Sends `signal` to all processes, kills those that still run after `grace`, then kills the processes that they left behind.
    /// Processes that SIGSTOP stopped cannot act on `signal`: they are killed as soon as no other process runs. If they were continued
    /// instead, they would enter the operation in which the others wait, and no record would show which rank was late. Returns the
    /// processes that could act on `signal` and had to be killed, by their numbers on this node.
    pub async fn stop(&mut self, signal: Signal, grace: Duration, guard: &mut Guard) -> Vec<u32> {
        self.signal(signal);
        let due = after(grace);
        while self.can_act() && now() < due {
            let _ = timeout(LOOK, self.ended()).await;
        }
        let acts = |process: &Process| process.running && !process.is_stopped();
        let late =
            (0..).zip(&self.all).filter(|(_, process)| acts(process)).map(|(local, _)| local).collect();
        self.signal(Signal::KILL);
        while self.is_running() {
            self.ended().await;
        }
        for process in self.all.drain(..) {
            guard.forget(process.group).await;
        }
        sweep(guard.id()).await;
        late
    }

    /// Takes the exit codes of adopted processes that have ended, so that they do not count as processes any more.
    pub fn reap_orphans(&self, guard: Option<u32>) {
        let own = |id: i32| {
            guard == Some(id.unsigned_abs())
                || self.all.iter().any(|process| process.running && process.group.as_raw_pid() == id)
        };
        for orphan in children().into_iter().filter(|id| !own(*id)).filter_map(Pid::from_raw) {
            let _ = waitpid(Some(orphan), WaitOptions::NOHANG);
        }
    }
}

/// Kills the processes that ranks started and that left the ranks' groups: orphans, which this process has adopted.
async fn sweep(spared: Option<u32>) {
    for _ in 0..100 {
        let orphans = children().into_iter().filter(|id| spared != Some(id.unsigned_abs()));
        let orphans: Vec<i32> = orphans.collect();
        if orphans.is_empty() {
            return;
        }
        for orphan in orphans.into_iter().filter_map(Pid::from_raw) {
            // The process may have ended already, or not be a child of this one.
            let _ = kill_process(orphan, Signal::KILL);
            let _ = waitpid(Some(orphan), WaitOptions::NOHANG);
        }
        sleep(Duration::from_millis(2)).await;
    }
}

/// The children of this process, which the system lists by the thread that started them; empty where there is no such list.
fn children() -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let lists = threads.flatten().filter_map(|of| std::fs::read_to_string(of.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect()
}
