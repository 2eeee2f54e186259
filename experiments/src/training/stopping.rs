//! The step after which a run ends because a signal asked it to: the same step on every rank.
//!
//! ```text
//! ranks of one process     the first rank that sees the signal chooses a step that no rank has ended yet
//! ranks in processes       after each step the ranks issue the maximum of the signals that they got, each with the rank, and wait for it
//!                          one step later
//! ```
//!
//! Workers of a parameter server may be `parallel.staleness` steps apart: then the maximum is waited for as many steps later, and the
//! step that is chosen is one for which no server has sent parameters yet.

use super::launch_mode::LaunchMode;
use allfold_base::lock;
use allfold_cli::interruption;
use allfold_collectives::{Buffer, Communicator, Rank, ReduceOp, Work};
use allfold_trainer::{Config, Result};
use std::collections::VecDeque;
use std::sync::Mutex;

/// The name of the group that agrees on the step.
const GROUP: u64 = 0x5354_4f50;

/// The bits of a rank beside its signal.
const RANK_BITS: u32 = 32;

/// The agreement, which the ranks of a process share.
pub struct Stopping {
    /// Whether ranks are processes.
    processes: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The most steps that a rank of this process has ended, with the step under way.
    begun: u64,
    /// The number of steps after which the run ends, and the signal.
    stop: Option<(u64, i32)>,
    /// The signal by which the run has ended.
    reached: Option<i32>,
    /// Where ranks are processes: a rank that got the signal.
    asked: Option<Rank>,
}

/// A rank's part of the agreement.
pub struct RankStop<'a> {
    stopping: &'a Stopping,
    /// The group of all ranks that are processes, and the maxima under way in it.
    group: Option<Communicator>,
    issued: VecDeque<Work<Buffer<i64>>>,
}

impl Stopping {
    /// The agreement of the ranks of a run.
    pub fn of(place: &LaunchMode) -> Stopping {
        let processes = matches!(place, LaunchMode::Process(_) | LaunchMode::Mpi(..));
        Stopping { processes, state: Mutex::default() }
    }

    /// Whether the ranks of this process ask after each step whether to end: before, nothing can be saved.
    pub fn begun(&self) -> bool {
        lock(&self.state).begun > 0
    }

    /// A rank that got the signal, if this process did not.
    pub fn asked_elsewhere(&self) -> Option<Rank> {
        lock(&self.state).asked.filter(|_| interruption::asked().is_none())
    }

    /// The signal by which the run has ended, if it has.
    pub fn reached(&self) -> Option<i32> {
        lock(&self.state).reached
    }
}

impl RankStop<'_> {
    /// A rank's part of an agreement.
    pub fn of(stopping: &Stopping) -> RankStop<'_> {
        RankStop { stopping, group: None, issued: VecDeque::new() }
    }

    /// After the step with which a rank of `comm` has done `done` steps: the number of steps after which the run ends, once known.
    ///
    /// # Errors
    /// Another rank has failed.
    pub fn after(&mut self, done: u64, config: &Config, comm: &Communicator) -> Result<Option<u64>> {
        let apart = if config.strategy == "parameter_server" { config.parallel.staleness } else { 0 };
        let ahead = if apart == 0 { 0 } else { apart + 1 };
        let signal = match self.stopping.processes {
            true => self.exchange(comm, apart)?,
            false => interruption::asked(),
        };
        let mut state = lock(&self.stopping.state);
        let first = if self.stopping.processes { done } else { state.begun.max(done) };
        state.stop = state.stop.or(signal.map(|signal| (first + ahead, signal)));
        state.begun = state.begun.max(done + 1);
        let stop = state.stop;
        if let Some((_, signal)) = stop.filter(|(stop, _)| *stop <= done) {
            state.reached = Some(signal);
            interruption::saves();
            drop(state);
            self.end();
        }
        Ok(stop.map(|(stop, _)| stop))
    }

    /// Issues the maximum of the signals that the ranks got, and returns that of `1 + apart` steps before, if it is a signal.
    fn exchange(&mut self, comm: &Communicator, apart: u64) -> Result<Option<i32>> {
        if self.group.is_none() {
            let all: Vec<Rank> = (0..comm.size()).map(Rank).collect();
            self.group = Some(comm.subgroup(&all, GROUP)?);
        }
        let rank = i64::from(comm.rank().0);
        let own = interruption::asked().map_or(0, |signal| i64::from(signal) << RANK_BITS | rank);
        let issued = self.group.as_ref().map(|group| group.all_reduce_async(vec![own].into(), ReduceOp::Max));
        self.issued.extend(issued.transpose()?);
        if self.issued.len() as u64 <= 1 + apart {
            return Ok(None);
        }
        let first = self.issued.pop_front().map(Work::wait).transpose()?.map_or(0, |signals| signals[0]);
        let signal = i32::try_from(first >> RANK_BITS).ok().filter(|signal| *signal > 0);
        if signal.is_some() {
            lock(&self.stopping.state).asked = Some(Rank((first & ((1 << RANK_BITS) - 1)) as u32));
        }
        Ok(signal)
    }

    /// Waits for what is under way, so that no rank leaves before the others have it. A rank that is lost is reported by the run's next
    /// operation.
    pub fn end(&mut self) {
        self.issued.drain(..).for_each(|work| drop(work.wait()));
    }
}
