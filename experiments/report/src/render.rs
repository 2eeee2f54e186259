//! The report: one HTML file, made from records alone, that opens without a network.
//!
//! ```text
//! records -> sections (text, figure, tables, command) -> page (template, style, a little script) -> report.html
//! ```

use crate::page::{Page, Section};
use crate::plots::{DrawError, Figure};
use crate::records::{Records, Stamp};
use crate::sections;

/// A report, ready to be written: the page, and its plots as files of their own.
pub struct RenderedReport {
    /// `report.html`.
    pub page: String,
    /// Names and contents of the plots: `scaling.svg`, `scaling-2.svg`, ...
    pub plots: Vec<(String, String)>,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No record is of a kind that a report shows.
    #[error("no record here can be shown; give records of verify, train, compare, bench, simulate or scale")]
    Empty,
    /// A plot failed.
    #[error(transparent)]
    Draw(#[from] DrawError),
}

/// The whole report.
///
/// # Errors
/// There is nothing to report in the records, or a plot fails.
pub fn render(records: &Records, stamp: &Stamp) -> Result<RenderedReport, Error> {
    let (findings, sections) = sections::all(records)?;
    if sections.is_empty() {
        return Err(Error::Empty);
    }
    let plots = sections.iter().flat_map(plots).collect();
    let page = Page { findings, sections, stamp: stamp.clone(), records }.html();
    Ok(RenderedReport { page, plots })
}

/// The plots of a part: the first has its name.
fn plots(section: &Section) -> Vec<(String, String)> {
    let named = |(number, (caption, figure)): (usize, &(String, Figure))| {
        let name = if number == 1 { section.id.to_string() } else { format!("{}-{number}", section.id) };
        (format!("{name}.svg"), figure.file(caption))
    };
    (1..).zip(&section.figures).map(named).collect()
}
