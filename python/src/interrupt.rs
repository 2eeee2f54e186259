//! Waits that Python's signals end, Ctrl-C for example.

use crate::errors::raised;
use allfold_collectives::{Result, interruptible};
use pyo3::prelude::*;
use std::cell::RefCell;

thread_local! {
    /// The exception of the signal that ended this thread's wait.
    static SIGNAL: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs `run` without holding the interpreter, on a thread that may hold it. While `run` waits for other ranks, Python's signals
/// are checked; where a handler raises an exception, the wait ends with that exception.
pub fn guarded<R: Send>(py: Python<'_>, run: impl FnOnce() -> Result<R> + Send) -> PyResult<R> {
    let result = py.detach(|| interruptible(signalled, run));
    result.map_err(|error| SIGNAL.take().unwrap_or_else(|| raised(error)))
}

/// Why a wait is to end: the handler of a signal raised an exception. Only the main thread has signals.
fn signalled() -> Option<String> {
    let error = Python::try_attach(|py| py.check_signals().err())??;
    let name = Python::try_attach(|py| error.get_type(py).name().map(|name| name.to_string()).ok()).flatten();
    SIGNAL.set(Some(error));
    Some(format!("its program got {}", name.as_deref().unwrap_or("a signal")))
}
