//! Measured runs of collectives, read from the files of other programs.
//!
//! ```text
//! nccl-tests' table (any layout, by its header)  --.
//! nccl-tests' JSON (-J, version 3)               ---+--> Run { who, what, rows } --> contradictions left out
//! a published run with its hardware and source   --'
//! ```
//!
//! The three layouts are distinguished by content. A file that cannot be read is refused with the line and the column; a row
//! that can be read and cannot be true is left out and named ([`Run::left_out`]).

mod contradiction;
mod facts;
mod flaw;
mod header;
mod left_out;
mod line;
mod published;
mod read;
mod records;
mod report;
mod run;
mod table;

pub use allfold_sim::machines::Description as Hardware;
pub use flaw::Flaw;
pub use left_out::LeftOut;
#[cfg(test)]
use read::parse_all as parse_given;
#[cfg(test)]
pub(crate) use read::parse_unchecked;
pub use read::{Reading, parse, read};
pub use run::{Run, RunRow};

#[cfg(test)]
mod tests;
