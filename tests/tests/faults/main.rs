#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! An error, and not a hang, for everything that ranks can do wrong, on every backend; and the error names it.

mod deadlines;
mod departures;
mod disagreements;
mod readme;
mod refusals;
mod worlds;
