//! An operation that was issued and need not be done yet.

use crate::errors::{late, raised};
use allfold_base::lock;
use allfold_collectives::Result;
use pyo3::prelude::*;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a wait lasts at most before Python's signals are checked.
const PAUSE: Duration = Duration::from_millis(50);

/// What an operation and its handle share.
#[derive(Default)]
pub struct Outcome {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    result: Option<Result<()>>,
    /// Called with the exception, or with `None`, once the operation is done.
    callbacks: Vec<Py<PyAny>>,
}

impl Outcome {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Sets the result of the operation and ends all waits for it. Returns its callbacks, if there are any.
    pub fn done(&self, result: Result<()>) -> Option<Callbacks> {
        let callbacks = {
            let mut state = self.state();
            state.result = Some(result.clone());
            std::mem::take(&mut state.callbacks)
        };
        self.changed.notify_all();
        (!callbacks.is_empty()).then_some(Callbacks { callbacks, result })
    }
}

/// The callbacks of an operation that is done.
pub struct Callbacks {
    callbacks: Vec<Py<PyAny>>,
    result: Result<()>,
}

impl Callbacks {
    /// Calls the callbacks, one after the other.
    pub fn call(self) {
        // No callback is called while the interpreter is ending.
        Python::try_attach(|py| {
            for callback in self.callbacks {
                call(py, &callback, &self.result);
            }
        });
    }
}

/// Calls a callback; its exception is passed to `sys.unraisablehook`.
fn call(py: Python<'_>, callback: &Py<PyAny>, result: &Result<()>) {
    let error = result.clone().err().map(|error| raised(error).into_value(py));
    if let Err(raised) = callback.call1(py, (error,)) {
        raised.write_unraisable(py, Some(callback.bind(py)));
    }
}

/// The handle of an operation.
#[pyclass(frozen)]
pub struct NativeWork {
    outcome: Arc<Outcome>,
}

impl NativeWork {
    pub fn new(outcome: Arc<Outcome>) -> NativeWork {
        NativeWork { outcome }
    }
}

#[pymethods]
impl NativeWork {
    /// Waits until the operation is done, at most this many seconds. Raises its error.
    #[pyo3(signature = (timeout=None))]
    pub fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        #[allow(clippy::disallowed_methods, reason = "a program waits in real time")]
        let now = Instant::now;
        let limit =
            timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX));
        let begun = now();
        loop {
            let left = limit.map_or(PAUSE, |limit| limit.saturating_sub(now() - begun));
            let found = py.detach(|| {
                let state = self.outcome.state();
                let waited = self
                    .outcome
                    .changed
                    .wait_timeout_while(state, left.min(PAUSE), |state| state.result.is_none());
                waited.unwrap_or_else(PoisonError::into_inner).0.result.clone()
            });
            if let Some(result) = found {
                return result.map_err(raised);
            }
            py.check_signals()?;
            if left.is_zero() {
                return Err(late(timeout.unwrap_or_default()));
            }
        }
    }

    /// Whether the operation is done.
    pub fn is_done(&self) -> bool {
        self.outcome.state().result.is_some()
    }

    /// The exception of an operation that is done and failed.
    pub fn exception(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let result = self.outcome.state().result.clone()?;
        Some(raised(result.err()?).into_value(py).into_any())
    }

    /// Calls `callback` with the exception, or with `None`, once the operation is done: at once if it is done already.
    pub fn then(&self, py: Python<'_>, callback: Py<PyAny>) {
        let result = {
            let mut state = self.outcome.state();
            match &state.result {
                Some(result) => result.clone(),
                None => return state.callbacks.push(callback),
            }
        };
        call(py, &callback, &result);
    }
}
