//! Waits that a rank's own program can end: Python, for example, checks for signals while a rank waits.

use super::deadline::LOOK;
use std::cell::Cell;
use std::time::Duration;

/// The longest time that a rank waits before it calls the program's function again.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// The program's function: returns the reason if a wait is to end.
type Ask = fn() -> Option<String>;

thread_local! {
    static ASK: Cell<Option<Ask>> = const { Cell::new(None) };
}

/// Calls `run` on this thread. While `run` waits for other ranks, `ask` is called about twenty times a second. A text that
/// `ask` returns ends the wait: the group fails with [`crate::Error::Aborted`] and that text as its reason.
pub fn interruptible<R>(ask: Ask, run: impl FnOnce() -> R) -> R {
    let before = ASK.replace(Some(ask));
    let result = run();
    ASK.set(before);
    result
}

/// The reason if this thread's wait is to end: the result of the `ask` of [`interruptible`], for waits outside this crate too.
pub fn asked() -> Option<String> {
    ASK.get().and_then(|ask| ask())
}

/// How long this thread may sleep in one wait: `sleep`, but at most [`LOOK`], and at most [`PAUSE`] if it has to call `ask` meanwhile.
pub(crate) fn pause(sleep: Duration) -> Duration {
    sleep.min(if ASK.get().is_some() { PAUSE } else { LOOK })
}
