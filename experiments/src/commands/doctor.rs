//! `allfold doctor`: what this machine has, what is missing, and how to get it.
//!
//! CUDA's libraries are loaded and queried, as the kernels do; other libraries are only searched for as files.

mod finding;
#[cfg_attr(not(feature = "cuda"), path = "doctor/no_gpus.rs")]
mod gpus;
mod search;

use crate::measure::this_machine::{cpuinfo, processor};
use allfold_cli::columns::columns;
use allfold_cli::common::Common;
use allfold_cli::error::CommandResult;
use allfold_cli::memory;
use allfold_cli::output::RunOutput;
use allfold_report::records::DoctorFinding;
use finding::{found, missing};
use search::{library, names_in};
use std::collections::BTreeSet;
use std::fs;

/// Flags of `doctor`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  allfold doctor\n  allfold doctor --json -")]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
}

/// Examines this machine and prints the findings.
pub fn run(args: &Args) -> CommandResult {
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    let mut findings = vec![cpu(), simd(), memory_size()];
    findings.extend(gpus::findings());
    findings.extend([mpi(), interfaces()]);
    let mut rows = vec![vec!["item".to_string(), "found".into(), "detail".into()]];
    for finding in &findings {
        output.record(finding)?;
        let found = if finding.found { "yes" } else { "no" };
        rows.push(vec![finding.item.clone(), found.into(), finding.detail.clone()]);
    }
    output.say(columns(&rows))?;
    let missing: Vec<_> = findings.iter().filter_map(|f| Some((&f.item, f.advice.as_ref()?))).collect();
    if missing.is_empty() {
        output.say("\nNothing is missing.")?;
    } else {
        output.say("\nMissing, and how to get it:")?;
    }
    for (item, advice) in missing {
        output.say(format!("  {item}: {advice}"))?;
    }
    output.close()
}

fn cpu() -> DoctorFinding {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let model = processor().unwrap_or_else(|| std::env::consts::ARCH.into());
    let node_folders = names_in("/sys/devices/system/node");
    let nodes = node_folders
        .iter()
        .filter(|name| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok()))
        .count();
    let numa = if nodes > 1 { format!(", {nodes} NUMA nodes") } else { String::new() };
    found("cpu", format!("{threads} usable: {model}{numa}"))
}

fn simd() -> DoctorFinding {
    const OF_INTEREST: [&str; 8] =
        ["sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_bf16"];
    let flags: BTreeSet<String> = cpuinfo("flags")
        .or_else(|| cpuinfo("Features"))
        .map(|flags| flags.split_whitespace().map(String::from).collect())
        .unwrap_or_default();
    let arm = ["asimd", "sve", "sve2", "bf16"];
    let present: Vec<&str> =
        OF_INTEREST.into_iter().chain(arm).filter(|flag| flags.contains(*flag)).collect();
    if present.is_empty() {
        missing("simd", "no vector features listed", "nothing to do: the kernels run without them, slower")
    } else {
        found("simd", present.join(" "))
    }
}

fn memory_size() -> DoctorFinding {
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    match (memory::total(), memory::available()) {
        (Some(total), Some(free)) => found("memory", format!("{}, {} available", gib(total), gib(free))),
        _ => {
            missing("memory", "unknown: no /proc/meminfo", "nothing to do: sizes are not checked beforehand")
        }
    }
}

fn mpi() -> DoctorFinding {
    let launchers = ["mpirun", "mpiexec", "srun"];
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let on_path = |name: &str| std::env::split_paths(&paths).map(|p| p.join(name)).find(|p| p.is_file());
    let libraries = ["libmpi.so.40", "libmpi.so.12", "libmpi.so"];
    match launchers.iter().find_map(|name| on_path(name)) {
        Some(path) => {
            let library = libraries.iter().find_map(|name| library(name));
            let library = library.map_or("no libmpi".to_string(), |path| path.display().to_string());
            found("mpi", format!("{}, {library}", path.display()))
        }
        None => missing(
            "mpi",
            "no mpirun, mpiexec or srun",
            "install openmpi-bin (Debian, Ubuntu), openmpi (Fedora, Homebrew), or load your cluster's MPI module",
        ),
    }
}

/// Network interfaces with their speed, and InfiniBand devices.
fn interfaces() -> DoctorFinding {
    let read = |path: String| fs::read_to_string(path).ok().map(|text| text.trim().to_string());
    let ethernet = names_in("/sys/class/net").into_iter().filter(|name| name != "lo").map(|name| {
        let state = read(format!("/sys/class/net/{name}/operstate")).unwrap_or_default();
        let speed = read(format!("/sys/class/net/{name}/speed")).and_then(|text| text.parse::<i64>().ok());
        match speed.filter(|mbit| *mbit > 0) {
            Some(mbit) => format!("{name} ({state}, {} Gb/s)", mbit as f64 / 1e3),
            None => format!("{name} ({state})"),
        }
    });
    let infiniband = names_in("/sys/class/infiniband").into_iter().map(|name| {
        let rate = read(format!("/sys/class/infiniband/{name}/ports/1/rate")).unwrap_or_default();
        format!("{name} (InfiniBand or RoCE, {rate})")
    });
    let all: Vec<String> = ethernet.chain(infiniband).collect();
    if all.is_empty() {
        missing(
            "nics",
            "none but the loopback",
            "nothing to do on one machine; for more, join it to a network",
        )
    } else {
        found("nics", all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_that_is_missing_has_advice() {
        let ours = [cpu(), simd(), memory_size(), mpi(), interfaces()];
        for finding in ours.into_iter().chain(gpus::findings()) {
            assert_eq!(finding.found, finding.advice.is_none(), "{finding:?}");
            assert!(!finding.detail.is_empty() && !finding.detail.contains('\n'));
        }
    }
}
