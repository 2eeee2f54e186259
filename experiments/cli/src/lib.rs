//! Shared parts of the commands: errors, output and records, and the syntax of names.

pub mod closed_output;
pub mod columns;
pub mod common;
pub mod devices;
pub mod error;
pub mod files;
pub mod interruption;
pub mod invocation;
pub mod launched;
pub mod log;
pub mod memory;
pub mod names;
pub mod output;
pub mod printable;
pub mod progress;
pub mod recorder;
pub mod share;
pub mod torchrun;
