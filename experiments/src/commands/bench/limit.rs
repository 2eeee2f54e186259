//! The limits of this machine, printed below the table of what was measured on it.

use crate::measure::machine_limits::{self, cores};
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_collectives::Collective;
use allfold_collectives::tcp::duplex;
use allfold_report::records::{Limit, MeasuredCollective};

/// The size at which the machine's limit is measured: the largest of the sweep from 1 MiB to 64 MiB (which takes little time); if
/// there is none, 1 MiB for a sweep of smaller sizes, else 64 MiB.
fn size_of(sizes: &[u64]) -> u64 {
    let large = sizes.iter().copied().filter(|size| (1 << 20..=64 << 20).contains(size)).max();
    large.unwrap_or_else(|| if sizes.iter().all(|size| *size < 1 << 20) { 1 << 20 } else { 64 << 20 })
}

/// Measures how fast memory copies and adds, and prints what share of that rate the calls reached.
///
/// # Errors
/// Not enough memory.
pub fn of_memory(
    ranks: u32,
    collective: Collective,
    sizes: &[u64],
    records: &[MeasuredCollective],
    output: &mut RunOutput,
) -> CommandResult {
    let (size, threads) = (size_of(sizes), ranks.min(cores()));
    let mut limit = machine_limits::measure(threads, size)?;
    if collective == Collective::AllReduce && ranks > 1 {
        limit.fused_gbps = Some(machine_limits::fused(threads, ranks, size)?);
    }
    output.record(&limit)?;
    output.say(line(&limit, records))
}

/// Measures how fast sockets carry data, and prints what share of that rate the calls reached.
///
/// # Errors
/// Sockets that fail.
pub fn of_sockets(
    ranks: u32,
    collective: Collective,
    sizes: &[u64],
    records: &[MeasuredCollective],
    output: &mut RunOutput,
) -> CommandResult {
    let size = size_of(sizes);
    let each = (size as f64 * collective.bus_factor(ranks)) as usize;
    let seconds = duplex(ranks, each).map_err(CommandError::run)?;
    let alone = each as f64 / seconds / 1e9;
    let mut line = format!("# sockets alone: {alone:.2} GB/s each way at once");
    let same = records.iter().filter(|record| record.call.bytes == size).map(|record| record.busbw_gbps);
    if let Some(busbw) = same.reduce(f64::max) {
        line.push_str(&format!("; busbw {busbw:.2} GB/s at that size = {:.0} %", 100.0 * busbw / alone));
    }
    output.say(line)
}

fn line(limit: &Limit, records: &[MeasuredCollective]) -> String {
    let mut line = format!(
        "# Limit, measured in this run over {} threads: copy {:.2} GB/s, a += b {:.2} GB/s",
        limit.threads, limit.copy_gbps, limit.reduce_gbps
    );
    let all_reduce = records.iter().filter(|r| {
        r.call.collective == Collective::AllReduce.name() && r.call.ranks > 1 && r.call.bytes == limit.bytes
    });
    if let Some(best) = all_reduce.max_by(|a, b| a.algbw_gbps.total_cmp(&b.algbw_gbps)) {
        if let Some(fused) = limit.fused_gbps {
            line.push_str(&format!(
                ", all-reduce {fused:.2} GB/s; algbw of {:.2} GB/s at that size is {:.0} % of it",
                best.algbw_gbps,
                best.algbw_gbps / fused * 100.0
            ));
            return line;
        }
        let share = best.algbw_gbps * f64::from(best.call.ranks - 1) / limit.reduce_gbps;
        line.push_str(&format!(
            "; algbw of {:.2} GB/s at that size adds {} buffers, {:.0} % of it",
            best.algbw_gbps,
            best.call.ranks - 1,
            share * 100.0
        ));
    }
    line
}
