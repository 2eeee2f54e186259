//! The parts of a report page.

use crate::cells::{Column, cells};
use crate::plots::Figure;
use crate::records::{Records, Stamp};

/// The three questions on top of the page. Each has a card with the facts that answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether results and predictions can be trusted.
    Trust,
    /// How fast this machine is.
    Here,
    /// How the work would scale to more ranks.
    Scale,
}

impl Question {
    /// The questions in the order of their cards.
    pub const ALL: [Question; 3] = [Question::Trust, Question::Here, Question::Scale];

    /// The question as a card's title.
    pub fn title(self) -> &'static str {
        match self {
            Question::Trust => "Can I trust it?",
            Question::Here => "How fast is it here?",
            Question::Scale => "How would it scale?",
        }
    }
}

/// One fact of a card.
#[derive(Clone, Debug, PartialEq)]
pub struct Headline {
    /// The figure itself, shown large.
    pub value: String,
    /// The text of the line.
    pub text: String,
    /// Whether the fact is good or bad; `None` if it is neither.
    pub ok: Option<bool>,
}

/// A table behind a plot. All of its rows are measured, or all are simulated, or neither.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportTable {
    /// The content of the table, and whether it was measured or simulated.
    pub caption: String,
    /// The names of the columns.
    pub head: Vec<String>,
    /// The cells, row by row.
    pub rows: Vec<Vec<String>>,
    /// Whether the table is shown folded, because it is long.
    pub collapsed: bool,
}

impl ReportTable {
    /// A table with a row for each of `rows`, shown unfolded.
    pub fn new<T>(
        caption: impl Into<String>,
        rows: impl IntoIterator<Item = T>,
        columns: &[Column<T>],
    ) -> ReportTable {
        let (head, rows) = cells(rows, columns);
        ReportTable { caption: caption.into(), head, rows, collapsed: false }
    }

    /// The table, folded if `collapsed`.
    pub fn folded(self, collapsed: bool) -> ReportTable {
        ReportTable { collapsed, ..self }
    }
}

/// A figure with its caption and its finding.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What is plotted, and whether it was measured or simulated.
    pub caption: String,
    /// One sentence that is computed from the plotted values.
    pub finding: Option<String>,
    /// The names and values by which a reader selects this plot among the section's plots with the same names. A plot
    /// without choices is always shown.
    pub choices: Vec<(&'static str, String)>,
    /// The drawing.
    pub figure: Figure,
}

impl Plot {
    /// A plot that is always shown.
    pub fn new(caption: impl Into<String>, finding: Option<String>, figure: Figure) -> Plot {
        Plot { caption: caption.into(), finding, choices: Vec::new(), figure }
    }

    /// The plot as one among several, selected by these names and values.
    pub fn among(self, choices: Vec<(&'static str, String)>) -> Plot {
        Plot { choices, ..self }
    }
}

/// One part of the report.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// The anchor of the section.
    pub id: &'static str,
    /// The section's heading.
    pub title: String,
    /// The paragraphs of the section.
    pub text: Vec<String>,
    /// The plots.
    pub plots: Vec<Plot>,
    /// The tables behind the plots.
    pub tables: Vec<ReportTable>,
    /// The commands that make the section's records again.
    pub commands: Vec<String>,
    /// Whether the section is folded away below its heading.
    pub folded: bool,
}

/// The content of a page, made from records alone.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The first line: the most important result in one sentence.
    pub answer: String,
    /// The date and the machine of the run, one fact each.
    pub machine: Vec<String>,
    /// The facts of each card, in order.
    pub facts: Vec<(Question, Headline)>,
    /// The parts, in order.
    pub sections: Vec<Section>,
    /// What the numbers do not cover.
    pub limits: Vec<String>,
}

/// A whole report page.
pub struct Page<'a> {
    /// What the page shows.
    pub contents: Contents,
    /// The commit, the host and the command that the page names: those of the program that makes the page.
    pub stamp: Stamp,
    /// The records that the page was made from.
    pub records: &'a Records,
}
