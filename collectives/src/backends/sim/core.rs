//! The state that all handles of a world on virtual time share.

use super::options::Options;
use super::state::State;
use super::tasks::Wait;
use crate::backends::TaskId;
use crate::transport::Pool;
use allfold_sim::Picos;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The deadline of operations if no deadline is given and fault rules are not steady ([`allfold_sim::Faults::is_steady`]): 300 s.
const LOSSY_DEADLINE: Picos = Picos(300_000_000_000_000);

/// The state behind its lock, and what tasks share in addition.
pub(super) struct Core {
    state: Mutex<State>,
    pub pool: Pool,
    watchdog: Duration,
}

impl Core {
    /// A core with one rank for each rank of the topology; all of them form group 0.
    pub fn new(mut options: Options) -> Core {
        if !options.faults.is_steady() {
            options.deadline.get_or_insert(LOSSY_DEADLINE);
        }
        let watchdog = options.watchdog;
        Core { state: Mutex::new(State::new(options)), pool: Pool::default(), watchdog }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks a task until the event loop wakes it; runs the event loop if no other task runs.
    pub fn block<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        task: TaskId,
        wait: Wait,
    ) -> MutexGuard<'a, State> {
        state.block(task, wait);
        let waker = state.tasks.at(task).waker.clone();
        while !state.tasks.is_running(task) {
            let seen = state.progress;
            let (next, waited) =
                waker.wait_timeout(state, self.watchdog).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if waited.timed_out() && state.progress == seen && !state.tasks.is_running(task) {
                state.give_up(self.watchdog);
            }
        }
        state
    }
}
