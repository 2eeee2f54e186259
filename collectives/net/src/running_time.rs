//! The time during which this process runs. Deadlines between ranks count this time: a job that is paused as a whole (SIGSTOP to all of
//! its processes, a paused container, a suspended machine), or whose clock jumps, goes on where it was.
//!
//! ```text
//! real time      0 s ........ 8 s                            38 s .......... 50 s
//! process        | runs       | stopped                      | runs          |
//! running time   0 s ........ 8 s ......................... 9 s .......... 21 s
//! ```
//!
//! Whoever waits looks at the clock at least every `LOOK`. A longer gap than `LONGEST` between two looks means that the process did not
//! run: it counts as `LONGEST`.

use allfold_base::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::time::sleep as sleep_real_time;

/// The longest time for which a thread or task that has a deadline may wait before it looks at the clock again.
pub const LOOK: Duration = Duration::from_millis(250);

/// The longest time between two looks at the clock that counts in full.
const LONGEST: Duration = Duration::from_secs(1);

/// The longest wait, 136 years: replaces a deadline that the system's clock cannot represent.
const FOREVER: Duration = Duration::from_secs(1 << 32);

/// A wait took longer than its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late;

/// A clock that does not count gaps.
struct RunningClock {
    looked: Option<Instant>,
    /// The time that was not counted so far.
    stopped: Duration,
    /// How far the system's clock is assumed to have jumped.
    jumped: Duration,
}

impl RunningClock {
    fn at(&mut self, now: Instant) -> Instant {
        let now = now + self.jumped;
        let gap = now.saturating_duration_since(self.looked.unwrap_or(now));
        self.stopped += gap.saturating_sub(LONGEST);
        self.looked = self.looked.max(Some(now));
        now.checked_sub(self.stopped).unwrap_or(now)
    }
}

static CLOCK: Mutex<RunningClock> =
    Mutex::new(RunningClock { looked: None, stopped: Duration::ZERO, jumped: Duration::ZERO });

/// The present, on the clock of this module.
#[allow(clippy::disallowed_methods, reason = "ranks on real time wait for each other in real time")]
pub fn now() -> Instant {
    // The system's clock is read under the lock: a thread that read it before a pause would see a time before the pause's end.
    let mut clock = lock(&CLOCK);
    let now = Instant::now();
    clock.at(now)
}

/// The time at which a deadline that starts now expires.
pub fn after(deadline: Duration) -> Instant {
    let now = now();
    now.checked_add(deadline).unwrap_or(now + FOREVER)
}

/// Lets the system's clock jump forward, as a pause of this process does.
#[doc(hidden)]
pub fn jump(by: Duration) {
    lock(&CLOCK).jumped += by;
}

/// Waits until this time of the clock; for ever without one.
pub async fn sleep_until(due: Option<Instant>) {
    let Some(due) = due else { return std::future::pending().await };
    loop {
        let left = due.saturating_duration_since(now());
        if left.is_zero() {
            return;
        }
        sleep_real_time(left.min(LOOK)).await;
    }
}

/// Waits until this process has run for so long.
pub async fn sleep(time: Duration) {
    sleep_until(Some(after(time))).await;
}

/// Awaits `work` until this time of the clock. What is ready at once is never late.
///
/// # Errors
/// `work` was not ready in time.
pub async fn timeout_at<T>(due: Instant, work: impl Future<Output = T>) -> Result<T, Late> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        () = sleep_until(Some(due)) => Err(Late),
    }
}

/// [`timeout_at`] for a time from now on.
///
/// # Errors
/// `work` was not ready in time.
pub async fn timeout<T>(time: Duration, work: impl Future<Output = T>) -> Result<T, Late> {
    timeout_at(after(time), work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_counts_as_a_moment_and_time_never_runs_backwards() {
        let start = now();
        let mut clock = RunningClock { looked: None, stopped: Duration::ZERO, jumped: Duration::ZERO };
        let mut at = |millis: u64| (clock.at(start + Duration::from_millis(millis)) - start).as_millis();
        assert_eq!([0, 250, 500, 1500].map(&mut at), [0, 250, 500, 1500], "a process that runs");
        assert_eq!([61_500, 61_750, 62_000].map(&mut at), [2500, 2750, 3000], "after a minute's pause");
        assert_eq!(at(1 << 40), 4000);
    }

    #[test]
    fn a_deadline_beyond_the_clock_is_far_away_and_no_panic() {
        assert!(after(Duration::MAX) > now() + FOREVER / 2);
        assert!(after(Duration::ZERO) <= now());
    }
}
