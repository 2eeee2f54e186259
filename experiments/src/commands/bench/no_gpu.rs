//! Replaces `gpu` in a build without CUDA.

use super::args::{Args, GpuBackend};
use crate::measure::bench::Bench;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_report::records::MeasuredCollective;

/// Refuses to measure on GPUs: this program was built without CUDA.
pub fn run(_: &Args, backend: GpuBackend, _: &Bench, _: &[u64]) -> CommandResult<Vec<MeasuredCollective>> {
    Err(CommandError::usage(format!(
        "--backend {}: this program was built without GPUs; build it with the feature `cuda`, or measure on threads, shm \
         or tcp",
        backend.name()
    )))
}
