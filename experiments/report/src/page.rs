//! What a page is made of.

use crate::plots::Figure;
use crate::records::{Records, Stamp};

/// One line of the summary on top.
#[derive(Clone, Debug, PartialEq)]
pub struct Headline {
    /// The number, large.
    pub value: String,
    /// The text of the line.
    pub text: String,
    /// Whether it is as it should be; `None` where there is no should.
    pub ok: Option<bool>,
}

/// A table behind a plot. All of its rows are measured, or all are simulated, or neither.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportTable {
    /// The content of the table, and whether it was measured or simulated.
    pub caption: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// The cells.
    pub rows: Vec<Vec<String>>,
    /// Whether it is long enough to be folded away.
    pub collapsed: bool,
}

/// One part of the report.
#[derive(Clone, Debug)]
pub struct Section {
    /// The section's anchor.
    pub id: &'static str,
    /// The section's heading.
    pub title: String,
    /// Paragraphs.
    pub text: Vec<String>,
    /// Plots, each with a caption.
    pub figures: Vec<(String, Figure)>,
    /// The tables behind them.
    pub tables: Vec<ReportTable>,
    /// The commands that make the section's records again.
    pub commands: Vec<String>,
}

/// A report.
pub struct Page<'a> {
    /// The summary on top.
    pub findings: Vec<Headline>,
    /// The parts, in order.
    pub sections: Vec<Section>,
    /// The commit, host and date of the records.
    pub stamp: Stamp,
    /// The records that it was made from.
    pub records: &'a Records,
}
