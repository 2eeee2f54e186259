//! The `allfold` command, in this process, and the plots of its records.

use crate::errors::AllfoldError;
use crate::schedule::failed_step;
use allfold_base::lock;
use allfold_cli::invocation::keeping;
use allfold_experiments::commands::dispatch;
use allfold_report::records::{Records, Stamp};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How long a command runs at most before Python's signals are checked.
const PAUSE: Duration = Duration::from_millis(50);
/// Bytes of the stack of a command's thread: as many as a program's first thread has.
const STACK: usize = 8 << 20;

/// Runs the command with these arguments: it prints, and its exit code is returned. `program` is the command line that starts
/// another process of it.
#[pyfunction]
pub fn main(py: Python<'_>, words: Vec<OsString>, program: Vec<OsString>) -> u8 {
    py.detach(|| allfold_experiments::run_words(words, program))
}

/// Runs the command with these arguments: returns its text and its records, as lines of JSON. A wrong argument is a `ValueError`.
/// Where a signal's handler raises an exception, the call ends with that exception; the command itself continues to its end.
#[pyfunction]
pub fn capture(py: Python<'_>, words: Vec<OsString>) -> PyResult<(String, String)> {
    // An exception that is still there belongs to an earlier call.
    drop(failed_step());
    let (sender, ended) = channel();
    let ended = Mutex::new(ended);
    // The send fails if a signal has ended the call; the result is then not needed.
    let run = move || drop(sender.send(keeping(words, dispatch::run)));
    std::thread::Builder::new().name("allfold".into()).stack_size(STACK).spawn(run)?;
    let (result, kept) = loop {
        match py.detach(|| lock(&ended).recv_timeout(PAUSE)) {
            Ok(found) => break found,
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(AllfoldError::new_err("the command panicked; standard error has its message"));
            }
        }
    };
    if let Some(raised) = failed_step() {
        return Err(raised);
    }
    let Err(error) = result else { return Ok((kept.text, kept.records)) };
    let line = error.to_string();
    let line = line.strip_prefix("error: ").unwrap_or(&line).to_string();
    Err(match error.code() {
        2 => PyValueError::new_err(line),
        _ => AllfoldError::new_err(line),
    })
}

/// The plots of the report on these records, which are lines of JSON: each plot's file name and SVG.
#[pyfunction]
pub fn plots(py: Python<'_>, lines: &str) -> PyResult<Vec<(String, String)>> {
    py.detach(|| {
        let records = Records::parse(lines)?;
        let nobody = Stamp { commit: String::new(), host: String::new(), seed: None, command: String::new() };
        let report = allfold_report::render(&records, &nobody).map_err(|error| error.to_string())?;
        Ok(report.plots)
    })
    .map_err(PyValueError::new_err::<String>)
}
