//! The ranks of one node in one start of the world: started together, ended together, and nothing left of them.

use crate::guard::Guard;
use crate::output::{Printed, Printer};
use crate::process::{Ended, Process, Program};
use crate::start::StartedRank;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub(super) struct Processes {
    /// The processes, by their numbers on this node.
    all: Vec<Process>,
    ended: mpsc::UnboundedReceiver<Ended>,
    tell: mpsc::UnboundedSender<Ended>,
    /// The tasks that pass on the processes' output.
    pumps: JoinSet<()>,
}

/// How long the launcher waits for output that is still open although nothing is printed: the process that holds it open may
/// have left the job.
const SILENCE: Duration = Duration::from_secs(1);

impl Processes {
    /// No processes yet.
    pub fn new() -> Processes {
        let (tell, ended) = mpsc::unbounded_channel();
        Processes { all: Vec::new(), ended, tell, pumps: JoinSet::new() }
    }

    /// Starts the process of a rank: the next one of this node, or one that has ended.
    pub async fn start(
        &mut self,
        program: &Program<'_>,
        at: StartedRank,
        output: Printed<'_>,
        guard: &mut Guard,
    ) -> std::io::Result<()> {
        let (tell, pumps) = (self.tell.clone(), &mut self.pumps);
        let process = Process::start(program, at, output, tell, pumps)?;
        guard.watch(process.group).await?;
        match self.all.get_mut(at.local as usize) {
            Some(before) => guard.forget(std::mem::replace(before, process).group).await,
            None => self.all.push(process),
        }
        Ok(())
    }

    /// The next end of a process. Never, once all have ended.
    pub async fn ended(&mut self) -> Ended {
        match self.ended.recv().await {
            Some(ended) => {
                self.all[ended.local as usize].running = false;
                ended
            }
            None => std::future::pending().await,
        }
    }

    /// The ends that follow within a moment, for the first cause among ends that came at once.
    pub async fn soon(&mut self, within: Duration) -> Vec<Ended> {
        let due = Instant::now() + within;
        let mut found = Vec::new();
        while self.is_running()
            && let Ok(ended) = timeout_at(due, self.ended()).await
        {
            found.push(ended);
        }
        found
    }

    /// Waits until all that they have said is printed.
    pub async fn heard(&mut self, printer: &Printer) {
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

    pub fn signal(&self, signal: Signal) {
        self.all.iter().for_each(|process| process.signal(signal));
    }

    /// Asks all to end by `signal`, makes them after `grace`, and leaves nothing behind.
    pub async fn stop(&mut self, signal: Signal, grace: Duration, guard: &mut Guard) {
        self.signal(signal);
        let due = Instant::now() + grace;
        while self.is_running() && timeout_at(due, self.ended()).await.is_ok() {}
        self.signal(Signal::KILL);
        while self.is_running() {
            self.ended().await;
        }
        for process in self.all.drain(..) {
            guard.forget(process.group).await;
        }
        sweep(guard.id()).await;
    }
}

/// Kills what ranks started and what left their groups: orphans, which this process has adopted.
async fn sweep(spared: Option<u32>) {
    for _ in 0..100 {
        let orphans = children().into_iter().filter(|id| spared != Some(id.unsigned_abs()));
        let orphans: Vec<i32> = orphans.collect();
        if orphans.is_empty() {
            return;
        }
        for orphan in orphans.into_iter().filter_map(Pid::from_raw) {
            // The process may be gone already, or not be a child of this one.
            let _ = kill_process(orphan, Signal::KILL);
            let _ = waitpid(Some(orphan), WaitOptions::NOHANG);
        }
        sleep(Duration::from_millis(2)).await;
    }
}

/// The children of this process: each belongs to one of its threads. None where the system does not tell.
fn children() -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let lists = threads.flatten().filter_map(|of| std::fs::read_to_string(of.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect()
}
