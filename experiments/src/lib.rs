//! The `allfold` command: it proves, times, measures and trains, and leaves records from which tables, plots and the
//! report are made.
//!
//! ```text
//! main -> commands -> { scaling -> training, predict, measure } -> call -> cli
//!            |
//!            +-> session -> allfold_report: records -> { tables, plots } -> report
//! ```
//!
//! A command reads its flags, runs, prints a table and hands records to its [session](cli::session). What is drawn is
//! drawn from [records](allfold_report::records) alone, where measured and simulated are different types.

pub mod call;
pub mod cli;
pub mod commands;
pub mod datasets;
pub mod faults;
pub mod measure;
pub mod predict;
pub mod scaling;
pub mod training;
