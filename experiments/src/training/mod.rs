//! Training runs as the commands need them.

pub mod comparison;
pub mod config;
pub mod elastic;
pub mod launch_mode;
mod records;
pub mod reference_losses;
pub mod run;
mod spans;
pub mod tensorboard;
pub mod trained;
mod watch;
