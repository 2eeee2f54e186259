//! `verify` and `show`: what was proved about an algorithm, and the algorithm's picture.

use serde::{Deserialize, Serialize};

/// The result of both checks of one algorithm at one rank count: its messages match, its results are right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProofRecord {
    /// The collective's name: `all_reduce`, ...
    pub collective: String,
    /// The algorithm's name: `ring`, ...
    pub algorithm: String,
    /// Size of the group.
    pub ranks: u32,
    /// The number of rounds of the schedule.
    pub rounds: u64,
    /// `canonical`, `uniform` or `positional`; left out where nothing is reduced or the proof failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_class: Option<String>,
    /// Hash of the reduction trees; left out where nothing is reduced or the proof failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_hash: Option<String>,
    /// Whether every send has its receive, and every result is the one that the collective promises.
    pub ok: bool,
    /// The counterexample, if a proof failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counterexample: Option<String>,
}

/// One algorithm as a picture, with its cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// The collective's name: `all_reduce`, ...
    pub collective: String,
    /// The algorithm's name: `ring`, ...
    pub algorithm: String,
    /// Size of the group.
    pub ranks: u32,
    /// The number of rounds of the schedule.
    pub rounds: u64,
    /// `canonical`, `uniform` or `positional`; left out where nothing is reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_class: Option<String>,
    /// Hash of the reduction trees; left out where nothing is reduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_hash: Option<String>,
    /// The picture, line by line.
    pub picture: Vec<String>,
}
