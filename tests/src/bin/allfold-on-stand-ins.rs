//! The `allfold` command on stand-ins for GPUs and for NVIDIA's libraries, for tests of jobs of several processes on machines without a
//! GPU. A call that a real driver leaves undefined makes the exit code 70.
//!
//! | variable | |
//! |---|---|
//! | `ALLFOLD_STANDIN` | the number of GPUs of this host (8) |
//! | `ALLFOLD_STANDIN_RANK` | the rank that the next two concern, or `all` |
//! | `ALLFOLD_STANDIN_NCCL` | its version of NCCL: 2.21, or 2.17, which is refused |
//! | `ALLFOLD_STANDIN_FAULT` | `kill:N`, `stop:N` or `late:N`: it is killed, stopped or late in its Nth collective |

use allfold_gpu::nccl::{ProcessFault, StandIn, across_processes};
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
    across_processes(nccl().unwrap_or_default());
    let ended = allfold_experiments::run(&[]);
    let violations = standin_violations();
    violations.iter().for_each(|what| eprintln!("stand-in: {what}"));
    if violations.is_empty() { ended } else { ExitCode::from(70) }
}

/// The stand-in for NCCL of a rank that the variables name.
fn nccl() -> Option<StandIn> {
    let variable = |name: &str| std::env::var(name).ok();
    let concerned = variable("ALLFOLD_STANDIN_RANK")?;
    if concerned != "all" && Some(concerned) != variable("RANK") {
        return None;
    }
    let version = variable("ALLFOLD_STANDIN_NCCL")
        .and_then(|text| text.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?))));
    let fault = variable("ALLFOLD_STANDIN_FAULT").and_then(|text| {
        let (kind, nth) = text.split_once(':')?;
        let fault = match kind {
            "kill" => ProcessFault::Killed,
            "stop" => ProcessFault::Stopped,
            _ => ProcessFault::Late,
        };
        Some((nth.parse().ok()?, fault))
    });
    let usual = StandIn::default();
    Some(StandIn { version: version.unwrap_or(usual.version), fault, ..usual })
}
