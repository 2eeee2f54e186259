//! Signals that end a run early, without loss of what it has done so far.
//!
//! ```text
//! first signal    the step or part under way is ended first; if no thread of the process computes any more, the run hangs and ends at once
//! second signal   the process ends at once
//! ```

use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

/// Signals that end a run.
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// A process that uses no CPU time for this long after a signal counts as one that hangs.
const IDLE: Duration = Duration::from_secs(2);
/// The time between two readings of the CPU time of the process.
const LOOK: Duration = Duration::from_millis(100);
/// The most CPU time that a waiting process uses between two readings: waiting threads wake now and then.
const WAITING: Duration = Duration::from_millis(2);
/// How long the last work of a process may take: a thread that hangs may hold a lock that the work needs.
const LAST: Duration = Duration::from_secs(2);

/// The last signal that asked this process to end; 0 before it.
static ASKED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Whether a signal is ending this process, once [`before_the_signal_ends`] has done its work.
static ENDED_BY_SIGNAL: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Whether the run ends itself after such a signal, so that no signal ends the process any more unless it comes twice.
static ENDS_ITSELF: AtomicBool = AtomicBool::new(false);

/// Whether a run saves its last work, in which a process may wait for a disk for long.
static SAVING: AtomicBool = AtomicBool::new(false);

/// The signal that has asked this process to end, if it listens for signals and one has arrived.
pub fn asked() -> Option<i32> {
    i32::try_from(ASKED.load(Ordering::Relaxed)).ok().filter(|signal| *signal > 0)
}

/// Whether a run that listens for signals has received one and has not ended yet.
pub fn is_ending() -> bool {
    asked().is_some() && !is_ended_by_signal()
}

fn is_ended_by_signal() -> bool {
    ENDED_BY_SIGNAL.load(Ordering::Relaxed) && !ENDS_ITSELF.load(Ordering::Relaxed)
}

/// From now on a process that waits does not count as one that hangs.
pub fn saves() {
    SAVING.store(true, Ordering::Relaxed);
}

/// The signals that end a run, with those in `more`, but without SIGHUP if the caller ignores it, as `nohup` arranges.
fn ending(more: &[i32]) -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let nohup = ignored & 1 << (SIGHUP - 1) != 0;
    SIGNALS.iter().filter(|signal| **signal != SIGHUP || !nohup).chain(more).copied().collect()
}

/// Notes that a signal has come. A second signal of the kind ends the program at once. If the system refuses a handler, the signal
/// ends the program as it does without one.
fn note(signal: i32) {
    let came = Arc::new(AtomicBool::new(false));
    let _ = flag::register_conditional_default(signal, came.clone())
        .and_then(|_| flag::register(signal, came))
        .and_then(|_| flag::register_usize(signal, ASKED.clone(), signal as usize));
}

/// Receives the signals that end a run, and those in `more`. The program ends by itself soon after the first; a second one ends it at
/// once.
pub fn listen(more: &[i32]) {
    ending(more).into_iter().for_each(note);
}

/// After [`listen`]: ends the program if it hangs after a signal: once no thread has computed for two seconds, calls `last` and exits
/// with the signal's code. Ranks that wait for each other for ever do not end the step under way.
pub fn end_a_hang(more: &[i32], last: impl FnOnce() + Send + 'static) {
    let signals = ending(more);
    let work = move || {
        let Ok(mut signals) = Signals::new(signals) else { return };
        let Some(signal) = signals.forever().next() else { return };
        wait_until_idle();
        do_last(last);
        std::process::exit(128 + signal);
    };
    // Without a thread a second signal ends the run.
    let _ = thread::Builder::new().name("interruption".into()).spawn(work);
}

/// Waits until the process has not computed for [`IDLE`].
#[allow(clippy::disallowed_methods, reason = "a hang is seen in real time")]
fn wait_until_idle() {
    let (mut since, mut before) = (Instant::now(), computed());
    while since.elapsed() < IDLE {
        thread::sleep(LOOK);
        let now = computed();
        if now.saturating_sub(before) > WAITING || SAVING.load(Ordering::Relaxed) {
            since = Instant::now();
        }
        before = now;
    }
}

/// The CPU time that the threads of this process have used so far.
fn computed() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Calls `last` on a thread of its own, and waits for it for [`LAST`] at most. Returns what `last` returned in that time.
fn do_last<T: Send + 'static>(last: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, is_done) = channel();
    // The receiver is gone if `last` took too long.
    let work = move || drop(done.send(last()));
    thread::Builder::new().name("last".into()).spawn(work).ok()?;
    is_done.recv_timeout(LAST).ok()
}

/// Calls `last` with the signal's name when a signal that ends a run arrives, on a thread of its own, and then lets the signal end the
/// process, unless `last` returns that the run ends itself; a second signal ends the process at once. A rank of a job does this: the
/// other ranks end by the same signal, so that it cannot finish its step, which waits for them.
pub fn before_the_signal_ends(more: &[i32], last: impl FnOnce(&'static str) -> bool + Send + 'static) {
    let signals = ending(more);
    let work = move || {
        // If the system refuses a handler, the signal ends the process as it does without one.
        let Ok(mut heard) = Signals::new(&signals) else { return };
        for signal in signals {
            note(signal);
            let _ = flag::register(signal, ENDED_BY_SIGNAL.clone());
        }
        let Some(signal) = heard.forever().next() else { return };
        match do_last(move || last(name(signal))) {
            Some(true) => ENDS_ITSELF.store(true, Ordering::Relaxed),
            _ => end_by(signal),
        }
    };
    // Without a thread no handler is set either.
    let _ = thread::Builder::new().name("interruption".into()).spawn(work);
}

/// A signal's name.
pub fn name(signal: i32) -> &'static str {
    low_level::signal_name(signal).unwrap_or("a signal")
}

/// Ends the process by this signal, as a job's launcher expects.
pub fn end_by(signal: i32) {
    let _ = low_level::emulate_default_handler(signal);
}

/// Waits for the end of the process if a signal is ending it: an error that the signal caused in another rank is not this run's.
#[allow(clippy::disallowed_methods, reason = "another thread decides in real time")]
pub fn let_the_signal_end() {
    while is_ended_by_signal() {
        thread::sleep(LOOK);
    }
}
