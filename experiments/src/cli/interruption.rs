//! Signals that end a run early, with what it has done so far.

use signal_hook::consts::{SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

/// Signals that end a run, each with the exit code that a shell reports for a program that the signal ended.
const SIGNALS: [(i32, i32); 2] = [(SIGINT, 128 + SIGINT), (SIGTERM, 128 + SIGTERM)];

/// Whether a run that listens was told to end.
static ENDING: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

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
            let _ = signal_hook::flag::register_conditional_default(signal, came.clone())
                .and_then(|_| signal_hook::flag::register(signal, came.clone()))
                .and_then(|_| signal_hook::flag::register(signal, ENDING.clone()));
            (came, code)
        });
        Interruption(heard.into())
    }

    /// The exit code of a program that was interrupted; `None` as long as it was not.
    pub fn code(&self) -> Option<i32> {
        self.0.iter().find(|(came, _)| came.load(Ordering::Relaxed)).map(|(_, code)| *code)
    }
}
