//! The `allfold` command.

use std::process::ExitCode;

/// The variable with which CUDA's driver decides how many streams run in parallel: 8 by default, 32 at most.
const STREAMS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

fn main() -> ExitCode {
    // Ranks that are threads have several streams each on one GPU. A stream that has to wait for another rank's NCCL kernel can
    // be the stream that this kernel waits for.
    if std::env::var_os(STREAMS).is_none() {
        #[allow(unsafe_code, reason = "CUDA's driver reads this setting from the environment alone")]
        // SAFETY: the process has no other thread yet.
        unsafe {
            std::env::set_var(STREAMS, "32");
        }
    }
    allfold_experiments::run(&[])
}
