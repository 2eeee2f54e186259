//! The files of a report.

use allfold_cli::error::CommandResult;
use allfold_cli::output;
use allfold_report::RenderedReport;
use std::path::Path;

/// Writes the records, the plots, and last the page that shows them.
pub fn write(folder: &Path, records: &str, made: &RenderedReport) -> CommandResult {
    output::replace(&folder.join("records.jsonl"), records.as_bytes())?;
    output::replace_all(folder, &made.plots)?;
    output::replace(&folder.join("report.html"), made.page.as_bytes())
}
