//! Training runs as the commands need them.

pub mod beside;
pub mod config;
pub mod elastic;
pub mod place;
mod records;
pub mod run;
mod spans;
pub mod tensorboard;
pub mod trained;
mod watch;
