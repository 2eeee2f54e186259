//! What becomes of bytes that are no record, and of a TLS that cannot go on.

use std::io::{self, ErrorKind};

pub(super) fn invalid(what: impl ToString) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_string())
}
