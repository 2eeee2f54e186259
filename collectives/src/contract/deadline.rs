//! Deadlines of ranks that wait for each other in real time.

use std::time::{Duration, Instant};

/// The longest wait, 136 years: replaces a deadline that the system's clock cannot represent.
const LONGEST: Duration = Duration::from_secs(1 << 32);

/// The current time.
#[allow(clippy::disallowed_methods, reason = "ranks on real time wait for each other in real time")]
pub(crate) fn clock() -> Instant {
    Instant::now()
}

/// The time at which a deadline that starts now expires.
pub(crate) fn after(deadline: Duration) -> Instant {
    let now = clock();
    now.checked_add(deadline).unwrap_or(now + LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_beyond_the_clock_is_far_away_and_no_panic() {
        assert!(after(Duration::MAX) > clock() + LONGEST / 2);
        assert!(after(Duration::ZERO) <= clock());
    }
}
