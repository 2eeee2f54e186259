//! The runs of a file, and what of the file is none.

use super::flaw::Flaw;
use super::run::Run;
use std::collections::{BTreeMap, BTreeSet};

/// What a file holds.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The runs.
    pub runs: Vec<Run>,
    /// Tables that are no runs, each with the reason.
    pub left_out: Vec<Flaw>,
}

/// What a log of NCCL says was set and used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFacts {
    /// Variables that were set, and those that have the effect which the log shows.
    pub env: BTreeMap<String, String>,
    /// Words of the log on what was used: `via P2P`, `/GDRDMA`, ...
    pub used: BTreeSet<&'static str>,
    /// The number of NICs of the first host that lists them.
    pub nics: Option<u32>,
}
