//! The error for a file that is not what it should be.

use std::io::{Error, ErrorKind};

/// The error for a file that is not what it should be.
pub fn wrong(what: String) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}
