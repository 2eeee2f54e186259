//! Signals that end a run early, without loss of what it has done so far.
//!
//! ```text
//! first signal    the step or part under way is ended first; if no thread of the process computes any more, the run hangs and ends at once
//! second signal   the process ends at once
//! ```

use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

/// Signals that end a run, each with the exit code that a shell reports for a program that the signal ended.
const SIGNALS: [(i32, i32); 2] = [(SIGINT, 128 + SIGINT), (SIGTERM, 128 + SIGTERM)];

/// A process that uses no CPU time for this long after a signal counts as one that hangs.
const IDLE: Duration = Duration::from_secs(2);
/// The time between two readings of the CPU time of the process.
const LOOK: Duration = Duration::from_millis(100);
/// The most CPU time that a waiting process uses between two readings: waiting threads wake now and then.
const WAITING: Duration = Duration::from_millis(2);
/// How long the last work of a process may take: a thread that hangs may hold a lock that the work needs.
const LAST: Duration = Duration::from_secs(2);

/// Whether a signal has arrived that ends a run which listens for signals.
static ENDING: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Whether a signal is ending this process, once [`before_the_signal_ends`] has done its work.
static ENDED_BY_SIGNAL: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Whether a run that listens for signals has received one and has not ended yet.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// Receives the signals that end a run. The program ends by itself soon after the first; a second one ends it at once.
pub struct Interruption(Vec<(Arc<AtomicBool>, i32)>);

impl Interruption {
    /// Listens for the signals from now on.
    pub fn listen() -> Interruption {
        let heard = SIGNALS.map(|(signal, code)| {
            let came = Arc::new(AtomicBool::new(false));
            // If the system refuses a handler, the signal ends the program as it does without one.
            let _ = flag::register_conditional_default(signal, came.clone())
                .and_then(|_| flag::register(signal, came.clone()))
                .and_then(|_| flag::register(signal, ENDING.clone()));
            (came, code)
        });
        Interruption(heard.into())
    }

    /// The exit code of a program that was interrupted; `None` as long as it was not.
    pub fn code(&self) -> Option<i32> {
        self.0.iter().find(|(came, _)| came.load(Ordering::Relaxed)).map(|(_, code)| *code)
    }

    /// Ends the program if it hangs after a signal: once no thread has computed for two seconds, calls `last` and exits with the signal's
    /// code. Ranks that wait for each other for ever do not end the step under way.
    pub fn end_a_hang(&self, last: impl FnOnce() + Send + 'static) {
        let work = move || {
            let Ok(mut signals) = Signals::new(SIGNALS.map(|(signal, _)| signal)) else { return };
            let Some(signal) = signals.forever().next() else { return };
            wait_until_idle();
            do_last(last);
            std::process::exit(128 + signal);
        };
        // Without a thread a second signal ends the run.
        let _ = thread::Builder::new().name("interruption".into()).spawn(work);
    }
}

/// Waits until the process has not computed for [`IDLE`].
#[allow(clippy::disallowed_methods, reason = "a hang is seen in real time")]
fn wait_until_idle() {
    let (mut since, mut before) = (Instant::now(), computed());
    while since.elapsed() < IDLE {
        thread::sleep(LOOK);
        let now = computed();
        if now.saturating_sub(before) > WAITING {
            since = Instant::now();
        }
        before = now;
    }
}

/// The CPU time that the threads of this process have used so far.
fn computed() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Calls `last` on a thread of its own, and waits for it for [`LAST`] at most.
fn do_last(last: impl FnOnce() + Send + 'static) {
    let (done, is_done) = channel();
    let work = move || {
        last();
        // The receiver is gone if `last` took too long.
        let _ = done.send(());
    };
    if thread::Builder::new().name("last".into()).spawn(work).is_ok() {
        let _ = is_done.recv_timeout(LAST);
    }
}

/// Calls `last` with the signal's name when a signal that ends a run arrives, on a thread of its own, and then lets the signal end the
/// process; a second signal ends it at once. A rank of a job does this: the other ranks end by the same signal, so that it cannot
/// finish its step, which waits for them.
pub fn before_the_signal_ends(last: impl FnOnce(&'static str) + Send + 'static) {
    let work = move || {
        // If the system refuses a handler, the signal ends the process as it does without one.
        let Ok(mut signals) = Signals::new(SIGNALS.map(|(signal, _)| signal)) else { return };
        for (signal, _) in SIGNALS {
            let _ = flag::register_conditional_default(signal, ENDED_BY_SIGNAL.clone())
                .and_then(|_| flag::register(signal, ENDED_BY_SIGNAL.clone()));
        }
        if let Some(signal) = signals.forever().next() {
            do_last(move || last(low_level::signal_name(signal).unwrap_or("a signal")));
            // This ends the process by the signal, as the job's launcher expects.
            let _ = low_level::emulate_default_handler(signal);
        }
    };
    // Without a thread no handler is set either.
    let _ = thread::Builder::new().name("interruption".into()).spawn(work);
}

/// Waits for the end of the process if a signal is ending it: an error that the signal caused in another rank is not this run's.
pub fn let_the_signal_end() {
    while ENDED_BY_SIGNAL.load(Ordering::Relaxed) {
        thread::park();
    }
}
