//! Training runs for the commands: the ranks, the records and the plots.

pub mod comparison;
pub mod config;
pub mod elastic;
pub mod epochs;
pub mod launch_mode;
pub mod measured_shares;
pub mod profile;
pub mod rank_steps;
pub mod records;
pub mod reference_losses;
pub mod run;
mod spans;
pub mod stopping;
pub mod tensorboard;
pub mod trained;
pub mod waiting;
pub mod watch;
