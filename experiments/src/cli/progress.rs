//! A progress bar on standard error that vanishes when the work is done. If standard error is no terminal, a long run prints a
//! line every ten seconds instead.

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use std::io::Write;
use std::time::{Duration, Instant};

/// Time between two progress lines; a shorter run prints no line.
const BETWEEN: Duration = Duration::from_secs(10);

/// A progress bar of `total` units with a message.
pub fn bar(total: u64, message: &str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{msg:28} {bar:30} {pos}/{len} {elapsed} eta {eta}") {
        bar.set_style(style);
    }
    bar.set_message(message.to_string());
    bar
}

/// A spinner for work whose length is not known.
pub fn spinner(message: &str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        spinner.set_style(style);
    }
    spinner.set_message(message.to_string());
    spinner
}

/// The progress lines of a long run, for readers of a log file.
pub struct Lines {
    start: Instant,
    /// When the last line was due.
    last: Duration,
    /// The first step of this process: a resumed run does not begin at step 0.
    first: Option<u64>,
}

impl Lines {
    /// Starts the clock of a run's progress lines.
    #[allow(clippy::disallowed_methods, reason = "tells the user how long it takes")]
    pub fn begin() -> Lines {
        Lines { start: Instant::now(), last: Duration::ZERO, first: None }
    }

    /// Step `step` (from 0) of `steps` is done. Prints a line with `what` if one is due.
    pub fn step(&mut self, step: u64, steps: u64, what: &str) {
        if let Some(line) = self.due(self.start.elapsed(), step, steps, what) {
            // Writing fails if the reader has closed standard error; the run goes on.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    fn due(&mut self, now: Duration, step: u64, steps: u64, what: &str) -> Option<String> {
        let first = *self.first.get_or_insert(step);
        if now < self.last + BETWEEN {
            return None;
        }
        self.last = now;
        let (done, left) = (step + 1 - first, steps.saturating_sub(step + 1));
        let left = now.mul_f64(left as f64 / done as f64);
        Some(format!("step {} of {steps}, {what}, {} left", step + 1, HumanDuration(left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_every_ten_seconds_and_none_before() {
        let mut lines = Lines::begin();
        let mut due = |seconds: u64, step| lines.due(Duration::from_secs(seconds), step, 1000, "loss 0.5");
        assert_eq!(due(9, 100), None);
        assert_eq!(due(20, 299).as_deref(), Some("step 300 of 1000, loss 0.5, 70 seconds left"));
        assert_eq!(due(29, 310), None);
        assert!(due(30, 320).is_some());
    }
}
