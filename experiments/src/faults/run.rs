//! Runs one fault schedule and compares its outcome with the contract.

use super::case::FaultCase;
use super::judge::{FaultVerdict, judge};
use allfold_collectives::{Error, World};
use std::sync::mpsc;
use std::time::Duration;

/// A schedule that takes longer than this in real time counts as hung; a usual schedule takes milliseconds.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs one schedule and compares its outcome with the contract.
///
/// # Errors
/// The case itself cannot be run: a mistake of the generator.
pub fn run(seed: u64) -> Result<FaultVerdict, Error> {
    let case = FaultCase::drawn(seed);
    let world: World = case.world()?;
    let (done, wait) = mpsc::channel();
    let body = case.clone();
    // The schedule runs on a thread of its own, so that ranks that hang do not block this thread.
    let thread = std::thread::spawn(move || {
        let report = world.run_each(|comm| Ok::<_, Error>(body.run(&comm)));
        // After a timeout the receiver no longer exists.
        let _ = done.send(report);
    });
    match wait.recv_timeout(HANG_TIMEOUT) {
        Ok(report) => {
            let report = report?;
            // The thread has sent its report, so it is about to end.
            let _ = thread.join();
            Ok(judge(&case, report))
        }
        Err(_) => Ok(FaultVerdict::hung(&case)),
    }
}
