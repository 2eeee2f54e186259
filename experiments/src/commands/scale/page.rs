//! The records of a run as a page.

use crate::cli::failure::Outcome;
use crate::cli::session::{self, Session};
use std::path::Path;

/// Writes what was recorded so far as an HTML page.
pub fn write(path: &Path, session: &mut Session) -> Outcome {
    let report = allfold_report::render(&session.records()?, session.stamp())?;
    session::replace(path, report.page.as_bytes())?;
    session.say(format!("\nplot: {}", path.display()))
}
