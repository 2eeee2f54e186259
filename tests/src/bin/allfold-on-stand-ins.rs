//! The `allfold` command on stand-ins for GPUs and for NVIDIA's libraries, for tests of jobs of several processes on machines without a
//! GPU. `ALLFOLD_STANDIN` is the number of GPUs of this host (8). A call that a real driver leaves undefined makes the exit code 70.

use allfold_gpu::nccl::{StandIn, across_processes};
use allfold_standin::{StandinOptions, install, standin_violations};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let devices = std::env::var("ALLFOLD_STANDIN").map_or(Ok(8), |text| text.parse());
    let Ok(devices) = devices else {
        eprintln!("error: ALLFOLD_STANDIN must be a number of GPUs, such as 2");
        return ExitCode::from(2);
    };
    let limit = Duration::from_secs(600);
    let options = StandinOptions { devices, delay: Duration::ZERO, limit, ..StandinOptions::default() };
    if let Err(error) = install(options) {
        eprintln!("error: {error}");
        return ExitCode::from(2);
    }
    across_processes(StandIn::default());
    let ended = allfold_experiments::run(&[]);
    let violations = standin_violations();
    violations.iter().for_each(|what| eprintln!("stand-in: {what}"));
    if violations.is_empty() { ended } else { ExitCode::from(70) }
}
