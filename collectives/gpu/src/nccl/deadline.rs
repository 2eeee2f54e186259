//! Waiting in real time: by asking again, first at once and then at longer intervals, up to a deadline.

use crate::Result;
use std::time::{Duration, Instant};

/// Questions that are asked without sleeping in between: some tens of microseconds, in which most of what is waited for ends.
const SPINS: u32 = 256;
/// The interval of questions after that.
const INTERVAL: Duration = Duration::from_micros(20);

/// A wait that has begun.
pub(crate) struct Wait {
    begun: Instant,
    deadline: Duration,
    asked: u32,
}

impl Wait {
    #[allow(clippy::disallowed_methods, reason = "deadlines of GPUs are real time")]
    pub fn new(deadline: Duration) -> Wait {
        Wait { begun: Instant::now(), deadline, asked: 0 }
    }

    /// Pauses before the next question; whether there is time for one.
    #[allow(clippy::disallowed_methods, reason = "a GPU is waited for in real time")]
    pub fn again(&mut self) -> bool {
        self.asked = self.asked.saturating_add(1);
        match self.asked {
            0..=SPINS => std::thread::yield_now(),
            _ => std::thread::sleep(INTERVAL),
        }
        // The clock is read seldom while it spins.
        self.asked < SPINS && !self.asked.is_multiple_of(16) || self.begun.elapsed() <= self.deadline
    }
}

/// Asks until the answer is yes; `false` at the deadline.
///
/// # Errors
/// An answer that is an error.
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
