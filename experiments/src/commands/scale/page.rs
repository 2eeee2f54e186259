//! The HTML page of a run's records.

use allfold_cli::error::CommandResult;
use allfold_cli::output::{self, RunOutput};
use std::path::Path;

/// Writes the records so far as an HTML page.
pub fn write(path: &Path, output: &mut RunOutput) -> CommandResult {
    let report = allfold_report::render(&output.records()?, output.stamp())?;
    output::replace(path, report.page.as_bytes())?;
    output.say(format!("\npage: {}", path.display()))
}
