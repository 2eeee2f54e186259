//! The runs of a file, and what of the file is none.

use super::flaw::Flaw;
use super::run::Run;

/// What a file holds.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The runs.
    pub runs: Vec<Run>,
    /// Tables that are no runs, each with the reason.
    pub left_out: Vec<Flaw>,
}
