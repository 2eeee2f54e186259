//! The report: one HTML file, made from records alone, that opens without a network.
//!
//! ```text
//! records -> sections (text, figure, tables, command) -> page (template, style, a little script) -> report.html
//! ```

use crate::format::file_name;
use crate::page::{Page, Plot, Section};
use crate::plots::DrawError;
use crate::records::{Records, Stamp};
use crate::sections;

/// A report, ready to be written: the page, and its plots as files of their own.
pub struct RenderedReport {
    /// The text of `report.html`.
    pub page: String,
    /// Names and contents of the plots: `scaling.svg`, `scaling-2.svg`, `compare-5-pipeline.svg`, ...
    pub plots: Vec<(String, String)>,
}

/// Why no report can be made.
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
    let contents = sections::all(records)?;
    if contents.sections.is_empty() {
        return Err(Error::Empty);
    }
    let plots = contents.sections.iter().flat_map(plots).collect();
    let page = Page { contents, stamp: stamp.clone(), records }.html();
    Ok(RenderedReport { page, plots })
}

/// The plots of a section as (file name, SVG): `ID.svg`, then `ID-2.svg` and so on, with the strategy that a plot is of.
fn plots(section: &Section) -> Vec<(String, String)> {
    let named = |(number, Plot { caption, figure, choices, .. }): (usize, &Plot)| {
        let mut name = if number == 1 { section.id.to_string() } else { format!("{}-{number}", section.id) };
        for (_, value) in choices.iter().filter(|(what, _)| *what == "strategy") {
            name = format!("{name}-{}", file_name(value));
        }
        (format!("{name}.svg"), figure.file(caption))
    };
    (1..).zip(&section.plots).map(named).collect()
}
