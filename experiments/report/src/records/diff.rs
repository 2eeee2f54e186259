//! `diff`: how a time changed from one file of records to another.

use serde::{Deserialize, Serialize};

/// The times of one row in two files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowChange {
    /// The call or the run, in words.
    pub row: String,
    /// The time in the first file, in microseconds.
    pub before_us: f64,
    /// The time in the second file, in microseconds.
    pub after_us: f64,
    /// after / before - 1.
    pub change: f64,
    /// Standard error of the change, from the standard errors of both times; 0 where both are exact.
    pub change_error: f64,
    /// `slower`, `faster` or `same`.
    pub verdict: String,
}
