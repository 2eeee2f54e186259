//! The errors for bytes that are not valid records, and for a TLS session that cannot continue.

use std::io::{self, ErrorKind};

pub(super) fn invalid(what: impl ToString) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_string())
}
