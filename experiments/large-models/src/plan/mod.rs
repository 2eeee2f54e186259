//! Layouts of a training job that fit its GPUs, ranked by their predicted time.
//!
//! ```text
//! PlanTask  -->  all layouts (search.rs)  -->  Layout::check, memory, step  -->  the fastest, with intervals  -->  RankedPlan
//!                                                 '-> counts of what was left out, and why
//! ```

mod questions;
mod rank;
mod search;
mod task;

pub use questions::{Narrowing, WhatIf, narrowing, what_if};
pub use rank::{RankedLayout, RankedPlan, flops_per_token, name, plan};
pub use task::PlanTask;

#[cfg(test)]
mod tests;
