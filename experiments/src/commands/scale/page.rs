//! The records of a run as a page.

use crate::cli::error::CommandResult;
use crate::cli::output::{self, RunOutput};
use std::path::Path;

/// Writes what was recorded so far as an HTML page.
pub fn write(path: &Path, output: &mut RunOutput) -> CommandResult {
    let report = allfold_report::render(&output.records()?, output.stamp())?;
    output::replace(path, report.page.as_bytes())?;
    output.say(format!("\nplot: {}", path.display()))
}
