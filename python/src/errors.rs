//! Errors as Python exceptions.

use allfold_collectives::{Call, Error};
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;

create_exception!(allfold, AllfoldError, PyRuntimeError, "A collective failed, on every rank of its group.");
create_exception!(
    allfold,
    MismatchError,
    AllfoldError,
    "Two ranks called different operations, counts, types, operators or roots."
);
create_exception!(
    allfold,
    PeerLostError,
    AllfoldError,
    "A rank has died, returned or left while others needed it."
);
create_exception!(allfold, AbortedError, AllfoldError, "A rank ended the group's operations.");
create_exception!(allfold, DeadlineError, AllfoldError, "An operation took longer than its time-out.");

/// The exception for an error. An error of the caller's own arguments is a `ValueError`.
pub fn raised(error: Error) -> PyErr {
    let line = error.to_string();
    match &error {
        Error::Argument(_) | Error::Registry(_) | Error::Environment { .. } => PyValueError::new_err(line),
        Error::PeerLost { rank, .. } => with(PeerLostError::new_err(line), &[("rank", rank.0.into())]),
        Error::Aborted { by, .. } => with(AbortedError::new_err(line), &[("rank", by.0.into())]),
        Error::DeadlineExceeded { rank, .. } => {
            with(DeadlineError::new_err(line), &[("rank", rank.0.into())])
        }
        Error::Mismatch { rank, mine, peer, theirs } => {
            let number = |call: &Call| call.sequence;
            let fields = [
                ("rank", u64::from(rank.0)),
                ("peer", peer.0.into()),
                ("sequence", number(mine)),
                ("peer_sequence", number(theirs)),
            ];
            with(MismatchError::new_err(line), &fields)
        }
        _ => AllfoldError::new_err(line),
    }
}

/// The exception for a program's wait that has reached the limit which the program gave.
pub fn late(seconds: f64) -> PyErr {
    PyTimeoutError::new_err(format!("the operation was not done after {seconds} s; it goes on"))
}

/// An exception with these attributes.
fn with(error: PyErr, fields: &[(&str, u64)]) -> PyErr {
    Python::attach(|py| {
        for (name, value) in fields {
            // Exceptions take any attribute; if this one does not, its text still says all.
            let _ = error.value(py).setattr(*name, value);
        }
    });
    error
}
