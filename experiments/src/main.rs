//! The `allfold` command.

use std::process::ExitCode;

/// Settings of NVIDIA's libraries where the user has made none.
///
/// - The number of streams that CUDA's driver runs in parallel: 8 by default, 32 at most. Ranks that are threads have several streams
///   each on one GPU. A stream that has to wait for another rank's NCCL kernel can be the stream that this kernel waits for.
/// - NCCL registers the buffers of captured calls with all ranks: a captured call then waits for the other ranks, and a lost rank ends
///   that wait neither by an error nor by an abort from NCCL 2.28 on. All-gathers in graphs over several nodes stall too, up to 2.31.2
///   (issue 2389 of NVIDIA/nccl).
const DEFAULTS: [(&str, &str); 2] = [("CUDA_DEVICE_MAX_CONNECTIONS", "32"), ("NCCL_GRAPH_REGISTER", "0")];

fn main() -> ExitCode {
    for (name, value) in DEFAULTS.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()) {
        #[allow(unsafe_code, reason = "these libraries read the settings from the environment alone")]
        // SAFETY: the process has no other thread yet.
        unsafe {
            std::env::set_var(name, value);
        }
    }
    allfold_experiments::run(&[])
}
