//! Measured runs of collectives, read from the files of other programs.
//!
//! ```text
//! a log with tables of nccl-tests, RCCL-tests or OSU   --.
//! nccl-tests' JSON (-J, version 3)                     ---+--> Run { who, what, rows } --> rows that do not count left out
//! RCCL-tests' records (JSON, CSV)                      ---|
//! a published run with its hardware and source         --'
//! ```
//!
//! The layouts are distinguished by content. A file that cannot be read is refused with the line and the column. A row that is
//! broken, has wrong results or 0 bytes, or cannot be true is left out and counted ([`Run::left_out`]), and so is a table that is
//! no run ([`Reading::left_out`]).

mod contradiction;
mod facts;
mod flaw;
mod header;
mod left_out;
mod line;
mod published;
mod read;
mod reading;
mod records;
mod report;
mod run;
mod table;

pub use allfold_sim::machines::Description as Hardware;
pub use flaw::Flaw;
pub use left_out::RowsLeftOut;
#[cfg(test)]
use read::parse_all as parse_given;
#[cfg(test)]
pub(crate) use read::parse_unchecked;
pub use read::{log_facts, parse, parse_log, read};
pub use reading::{LogFacts, Reading};
pub use run::{Run, RunRow};

#[cfg(test)]
mod tests;
