//! What a run leaves behind, and what is drawn from it.
//!
//! A command writes [`records`], one JSON object per line. Tables, [`plots`] and the report are made from records
//! alone: nothing here runs, times or trains anything, so that a page can be made again from the lines of any run. What was
//! measured and what was simulated are different types, and no column, curve or marker holds both.
//!
//! ```text
//! records -> sections -> { tables, plots } -> one HTML file
//! ```
//!
//! ```
//! use allfold_report::records::{ProofRecord, Records, Stamp, line};
//!
//! let stamp = Stamp { commit: "c0ffee".into(), host: "h".into(), seed: None, command: "allfold verify".into() };
//! let proof = ProofRecord {
//!     collective: "all_reduce".into(),
//!     algorithm: "ring".into(),
//!     ranks: 4,
//!     rounds: 6,
//!     order_class: Some("positional".into()),
//!     tree_hash: Some("00".into()),
//!     ok: true,
//!     counterexample: None,
//! };
//! let text = line(&proof, &stamp)?;
//! assert!(text.starts_with(r#"{"schema":2,"kind":"verify","collective":"all_reduce""#));
//!
//! let records = Records::parse(&text)?;
//! assert_eq!(records.all::<ProofRecord>(), [proof]);
//! let report = allfold_report::render(&records, &stamp)?;
//! assert!(report.page.starts_with("<!DOCTYPE html>"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod cells;
mod escape;
pub mod format;
mod html;
pub mod loss_curve;
mod page;
pub mod plots;
pub mod records;
mod render;
mod sections;
pub mod sizes;

pub use page::{Contents, Headline, Page, Plot, Question, ReportTable, Section};
pub use render::{Error, RenderedReport, render};
pub use sections::{all as sections, measured_plots, simulated_plots};
