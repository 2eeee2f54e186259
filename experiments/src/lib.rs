//! The `allfold` command: it proves, times, measures and trains, and leaves records from which tables, plots and the
//! report are made.
//!
//! ```text
//! cli -> commands -> { collectives, trainer, sim }
//!            |
//!            +-> session -> records -> { table, plots } -> report
//! ```
//!
//! A command reads its flags, runs, prints a table and hands records to its [`session`]. What is drawn is drawn from
//! [`records`] alone, where measured and simulated are different types.

pub mod belief;
pub mod call;
pub mod cli;
pub mod collective_scaling;
pub mod commands;
pub mod critical;
pub mod elastic;
mod explain;
pub mod faults;
pub mod launch;
pub mod loss_curve;
pub mod measure;
pub mod nccl_simulation;
pub mod plots;
pub mod records;
pub mod report;
pub mod runs;
pub mod scaling;
pub mod scaling_tables;
pub mod scaling_validation;
pub mod sets;
pub mod tensorboard;
pub mod training;
pub mod workload_scaling;
