#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! Every mistake of a rank gives an error and not a hang, on every backend, and the error names the cause.

mod deadlines;
mod departures;
mod disagreements;
mod readme;
mod refusals;
mod worlds;
