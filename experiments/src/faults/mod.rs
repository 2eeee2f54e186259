//! Seeded fault schedules: a collective, a machine and one to three faults drawn from a number, run on virtual time with
//! real data, and held to the contract.
//!
//! ```text
//! seed --> case --> every rank: right, or told who is to blame --> verdict: no hang, no wrong result, no unnamed culprit
//! ```
//!
//! The contract: every collective, on every surviving rank, returns by its deadline with the right result or with an error
//! that names the first culprit. One number replays one schedule, to the bit.

mod case;
mod judge;

pub use case::Case;
pub use judge::{Ended, Tally, Verdict};

use allfold_collectives::{Error, World};
use std::sync::mpsc;
use std::time::Duration;

/// A schedule that takes longer than this in real time hangs. One takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs one schedule and judges it.
///
/// # Errors
/// The case itself cannot be run: a mistake of the generator.
pub fn run(seed: u64) -> Result<Verdict, Error> {
    let case = Case::drawn(seed);
    let world: World = case.world()?;
    let (done, wait) = mpsc::channel();
    let body = case.clone();
    // On a thread of its own, so that ranks that hang do not take this one with them.
    let thread = std::thread::spawn(move || {
        let report = world.run_each(|comm| Ok::<_, Error>(body.run(&comm)));
        // Nobody listens any more where it took too long.
        let _ = done.send(report);
    });
    match wait.recv_timeout(PATIENCE) {
        Ok(report) => {
            let report = report?;
            // It has sent, so it ends.
            let _ = thread.join();
            Ok(judge::judge(&case, report))
        }
        Err(_) => Ok(Verdict::hung(&case)),
    }
}
