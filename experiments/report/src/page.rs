//! What a page is made of, and the template that it is poured into.

use crate::plots::{DrawError, Figure};
use crate::records::{Records, Stamp};
use minijinja::value::Serde;
use minijinja::{Environment, context};
use serde::Serialize;

/// One line of the summary on top.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The number, large.
    pub value: String,
    /// What it is.
    pub text: String,
    /// Whether it is as it should be; `None` where there is no should.
    pub ok: Option<bool>,
}

/// A table behind a plot. All of its rows are measured, or all are simulated, or neither.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// What it holds, and whether that was measured or simulated.
    pub caption: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// The cells.
    pub rows: Vec<Vec<String>>,
    /// Whether it is long enough to be folded away.
    pub folded: bool,
}

/// One part of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// Its anchor.
    pub id: &'static str,
    /// Its heading.
    pub title: String,
    /// Paragraphs.
    pub text: Vec<String>,
    /// Plots, each with a caption.
    pub figures: Vec<(String, Figure)>,
    /// The tables behind them.
    pub tables: Vec<Table>,
    /// What makes its records again.
    pub commands: Vec<String>,
}

/// A report.
pub struct Page<'a> {
    /// The summary on top.
    pub findings: Vec<Finding>,
    /// The parts, in order.
    pub sections: Vec<Section>,
    /// Where it comes from.
    pub stamp: Stamp,
    /// The records that it was made from.
    pub records: &'a Records,
}

impl Page<'_> {
    /// The page as one HTML file. The proofs of single rank counts, thousands of lines, stay in the file of records;
    /// all other records travel in the page.
    ///
    /// # Errors
    /// The template does not fit, which is a mistake of ours.
    pub fn html(&self) -> Result<String, DrawError> {
        let lines: Vec<String> = self.records.without("verify").map(|value| value.to_string()).collect();
        // Nothing in the island may look like the end of a script.
        let island = format!("[{}]", lines.join(",\n")).replace('<', "\\u003c");
        let mut environment = Environment::new();
        environment.add_template("report.html", include_str!("template.html"))?;
        let page = environment.get_template("report.html")?.render(context! {
            findings => Serde(&self.findings),
            sections => Serde(&self.sections),
            stamp => Serde(&self.stamp),
            count => self.records.len(),
            style => include_str!("style.css"),
            script => include_str!("hover.js"),
            island,
        })?;
        Ok(page)
    }
}
