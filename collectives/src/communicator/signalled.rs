//! Writes the flight record of a process on a signal: on SIGTERM and SIGINT before the process ends, on SIGUSR2 while it continues;
//! and while the process makes no progress.

use super::{Communicator, Home};
use crate::flight::STALLED;
use crate::tcp::runtime;
use crate::{Error, Result, running_time};
use allfold_base::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The rank whose record is written: the newest of the process, which may join a world more than once.
static NEWEST: Mutex<Weak<Home>> = Mutex::new(Weak::new());

/// The signals that end a process, with their names.
const ENDING: [(SignalKind, &str); 2] =
    [(SignalKind::terminate(), "SIGTERM"), (SignalKind::interrupt(), "SIGINT")];

/// How often progress is looked for in the time after which a rank counts as stalled.
const LOOKS: u32 = 4;

impl Communicator {
    /// From now on writes the flight record when the process gets a signal: SIGTERM or SIGINT, and then ends the process, or
    /// SIGUSR2, after which the process continues. If the program itself catches SIGTERM, the record is written and the process
    /// is not ended; if it catches SIGINT or SIGUSR2, that signal is left to the program.
    pub(super) fn write_on_signal(&self) -> Result<()> {
        static LISTENING: AtomicBool = AtomicBool::new(false);
        *lock(&NEWEST) = self.owner.as_ref().map_or_else(Weak::new, Arc::downgrade);
        if LISTENING.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let runtime = runtime()?;
        let _inside = runtime.enter();
        let listen = |kind| signal(kind).map_err(|error| Error::System(error.to_string()));
        for (kind, name) in ENDING {
            let ends = !catches(kind);
            if !ends && kind == SignalKind::interrupt() {
                continue;
            }
            let mut signals = listen(kind)?;
            runtime.spawn(async move {
                while signals.recv().await.is_some() {
                    write_flight_record(&format!("it was asked to end ({name})"));
                    if ends {
                        // The exit code by which shells report an end by that signal.
                        std::process::exit(128 + kind.as_raw_value());
                    }
                }
            });
        }
        if !catches(SignalKind::user_defined2()) {
            let mut signals = listen(SignalKind::user_defined2())?;
            runtime.spawn(async move {
                while signals.recv().await.is_some() {
                    newest().iter().for_each(|owner| {
                        owner.process_state.recorder.dump("it was asked for its record (SIGUSR2)");
                    });
                }
            });
        }
        Ok(())
    }
}

/// Writes the flight record of this process's rank, for a program that catches a signal itself and ends. Does nothing in a process
/// that is no rank, or that has no folder for its record.
pub fn write_flight_record(reason: &str) {
    newest().iter().for_each(|owner| owner.process_state.recorder.write(reason));
}

/// From now on writes the flight record once each time that no operation of this process's rank begins or ends for `time` in which the
/// process runs. The process continues.
pub(super) fn write_when_stalled(time: Duration) -> Result<()> {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    runtime()?.spawn(async move {
        let (mut seen, mut same) = (None, 0);
        loop {
            running_time::sleep(time / LOOKS).await;
            let owner = newest();
            let now = owner.as_ref().map(|owner| owner.process_state.recorder.changes());
            same = if now == seen { same + 1 } else { 0 };
            seen = now;
            if same == LOOKS {
                let reason = format!("{STALLED} {} s", time.as_secs_f64());
                owner.iter().for_each(|owner| owner.process_state.recorder.dump(&reason));
            }
        }
    });
    Ok(())
}

fn newest() -> Option<Arc<Home>> {
    lock(&NEWEST).upgrade()
}

/// Whether this process catches a signal already.
fn catches(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 1 << (kind.as_raw_value() - 1) != 0)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_catches_sigterm_is_known() {
        assert!(!catches(SignalKind::terminate()));
        let _its = signal(SignalKind::terminate()).unwrap();
        assert!(catches(SignalKind::terminate()) && !catches(SignalKind::user_defined2()));
    }
}
