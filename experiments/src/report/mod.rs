//! The report: one HTML file, made from records alone, that opens without a network.
//!
//! ```text
//! records -> sections (text, figure, tables, command) -> page (template, style, a little script) -> report.html
//! ```

mod page;
mod sections;

pub use page::{Finding, Page, Section, Table};
pub use sections::all as sections;

use crate::failure::{Failure, Outcome};
use crate::records::{Records, Stamp};

/// The whole page.
///
/// # Errors
/// There is nothing to report in the records, or a plot or the template fails.
pub fn render(records: &Records, stamp: &Stamp) -> Outcome<String> {
    let (findings, sections) = sections::all(records).map_err(Failure::run)?;
    if sections.is_empty() {
        return Err(Failure::usage(
            "no record here can be shown; give records of verify, train, bench, simulate or scale",
        ));
    }
    Page { findings, sections, stamp: stamp.clone(), records }.html().map_err(Failure::run)
}
