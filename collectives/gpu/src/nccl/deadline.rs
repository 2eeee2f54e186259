//! Waiting in real time by polling: first without pauses, then at intervals, up to a deadline.

use crate::Result;
use allfold_collectives::running_time::now;
use std::time::{Duration, Instant};

/// The number of polls without sleeping in between. They take some tens of microseconds, in which most waits end.
const SPINS: u32 = 256;
/// The interval of later polls.
const INTERVAL: Duration = Duration::from_micros(20);

/// A wait in progress.
pub(crate) struct Wait {
    begun: Instant,
    deadline: Duration,
    asked: u32,
}

impl Wait {
    pub fn new(deadline: Duration) -> Wait {
        Wait { begun: now(), deadline, asked: 0 }
    }

    /// Pauses before the next poll; false if the deadline has passed.
    #[allow(clippy::disallowed_methods, reason = "a GPU is waited for in real time")]
    pub fn again(&mut self) -> bool {
        self.asked = self.asked.saturating_add(1);
        match self.asked {
            0..=SPINS => std::thread::yield_now(),
            _ => std::thread::sleep(INTERVAL),
        }
        // While the wait spins, the clock is read only at every 16th poll.
        self.asked < SPINS && !self.asked.is_multiple_of(16)
            || now().saturating_duration_since(self.begun) <= self.deadline
    }
}

/// Polls until `ask` returns true; `false` if the deadline passes first.
///
/// # Errors
/// The first error that `ask` returns.
pub(crate) fn until(deadline: Duration, mut ask: impl FnMut() -> Result<bool>) -> Result<bool> {
    let mut wait = Wait::new(deadline);
    loop {
        if ask()? {
            return Ok(true);
        }
        if !wait.again() {
            return Ok(false);
        }
    }
}
