//! `triage` and `hang`: the causes of a hang that dumps show, and how often they are the right ones.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What `triage` found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TriageFound {
    /// Whether the job hangs: `yes`, `no` or `unknown`.
    pub hung: Value,
    /// Why that is known.
    pub why: String,
    /// The causes, most likely first: each with `kind`, `ranks`, `said`, `evidence` and `against`.
    pub causes: Vec<Value>,
    /// Whether the first cause is clearly the likeliest; otherwise the causes are candidates.
    #[serde(default)]
    pub decided: bool,
    /// What the dumps do not tell.
    pub unknown: Vec<String>,
}

/// A part of a rank's last operations, on the axis of a triage's page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TriageSpan {
    /// The rank, how many ranks are alike, and the group.
    pub lane: String,
    /// What the rank did: `ended`, `waits`, `failed`, `in no operation`, and so on.
    #[serde(rename = "state")]
    pub kind: String,
    /// The operation.
    pub name: String,
    /// When it began, in milliseconds.
    pub start_ms: f64,
    /// When it ended; the end of the axis if it did not.
    pub end_ms: f64,
}

/// How one seeded hang was judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangJudged {
    /// The number of the case.
    pub case: u64,
    /// The job, and what ran it: `ddp, modelled` or `ddp, gloo`.
    pub job: String,
    /// The seeded cause.
    pub cause: String,
    /// The rank that caused it; missing in a healthy job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Which dumps were withheld: `none`, `culprit`, `random` or `half`.
    pub withheld: String,
    /// Whether cause and rank were named first; for a healthy job, whether it was called healthy.
    pub first: bool,
    /// Whether they were among the first two.
    pub second: bool,
    /// Whether a healthy rank was named first.
    pub wrong: bool,
    /// Whether nothing was named.
    pub undecided: bool,
    /// What was said.
    pub said: String,
}
