//! The lines that say what a launcher waits for.

use crate::output::Printer;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// How long a wait takes before its first line.
const FIRST: Duration = Duration::from_secs(2);
/// The time between two lines.
const BETWEEN: Duration = Duration::from_secs(5);

/// A wait, and when its next line is due.
pub(super) struct Waiting {
    printer: Printer,
    start: Instant,
    due: Instant,
}

impl Waiting {
    pub fn new(printer: Printer) -> Waiting {
        let start = Instant::now();
        Waiting { printer, start, due: start + FIRST }
    }

    /// Waits until the next line is due, and prints it unless the log is quiet. `what` says what is awaited.
    pub async fn line(&mut self, what: impl FnOnce() -> String) {
        sleep_until(self.due).await;
        if tracing::enabled!(tracing::Level::INFO) {
            let so_far = self.start.elapsed().as_secs();
            self.printer.say(&format!("waiting for {}, {so_far} seconds so far", what()));
        }
        self.due += BETWEEN;
    }

    /// Awaits `work`, and prints the lines meanwhile.
    pub async fn during<T>(mut self, work: impl Future<Output = T>, what: &str) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = self.line(|| what.into()) => {}
            }
        }
    }
}
