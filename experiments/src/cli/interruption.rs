//! Signals that end a run early, with what it has done so far.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

/// Signals that end a run, each with the exit code that a shell reports for a program that the signal ended.
const SIGNALS: [(i32, i32); 2] = [(SIGINT, 128 + SIGINT), (SIGTERM, 128 + SIGTERM)];

/// Whether a run that listens was told to end.
static ENDING: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Whether a signal is ending this process, once [`before_the_signal_ends`] has done its work.
static ENDED_BY_SIGNAL: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Whether a run that listens was told to end and has not done so yet.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// Receives the signals that end a run. The program ends by itself soon after the first; a second one ends it at once.
pub struct Interruption(Vec<(Arc<AtomicBool>, i32)>);

impl Interruption {
    /// Listens from now on.
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
}

/// Calls `last` when a signal that ends a run arrives, on a thread of its own, and then lets the signal end the process. A rank of a
/// job does this: the other ranks end by the same signal, so that it cannot finish its step, which waits for them.
pub fn before_the_signal_ends(last: impl FnOnce() + Send + 'static) {
    let work = move || {
        // If the system refuses a handler, the signal ends the process as it does without one.
        let Ok(mut signals) = Signals::new(SIGNALS.map(|(signal, _)| signal)) else { return };
        for (signal, _) in SIGNALS {
            let _ = flag::register(signal, ENDED_BY_SIGNAL.clone());
        }
        if let Some(signal) = signals.forever().next() {
            last();
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
