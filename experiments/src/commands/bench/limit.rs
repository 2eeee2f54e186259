//! The limits of this machine, printed below the table of what was measured on it.

use crate::measure::machine_limits::{self, cores};
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_collectives::Collective;
use allfold_collectives::tcp::duplex;
use allfold_report::records::MeasuredCollective;

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
    let mut line = format!(
        "# Limit, measured in this run over {} threads: copy {:.2} GB/s, a += b {:.2} GB/s",
        limit.threads, limit.copy_gbps, limit.reduce_gbps
    );
    if collective == Collective::AllReduce && ranks > 1 {
        let same = records.iter().filter(|record| record.call.bytes == size).map(|record| record.algbw_gbps);
        let reached = same.reduce(f64::max);
        let fused = least(reached, || machine_limits::fused(threads, ranks, size))?;
        limit.fused_gbps = Some(fused);
        line.push_str(&format!(", all-reduce {fused:.2} GB/s"));
        if let Some(reached) = reached {
            let share = 100.0 * reached / fused;
            line.push_str(&format!("; algbw of {reached:.2} GB/s at that size is {share:.0} % of it"));
        }
    }
    output.record(&limit)?;
    output.say(line)
}

/// A limit in GB/s that is not below what calls have `reached`. It is measured again where it is below, as on a machine that was busy
/// during the measurement.
fn least(reached: Option<f64>, mut measure: impl FnMut() -> CommandResult<f64>) -> CommandResult<f64> {
    const TRIES: usize = 5;
    let mut limit = 0.0f64;
    for _ in 0..TRIES {
        limit = limit.max(measure()?);
        if reached.is_none_or(|reached| reached <= limit) {
            break;
        }
    }
    Ok(reached.unwrap_or(limit).max(limit))
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
    let same = records.iter().filter(|record| record.call.bytes == size).map(|record| record.busbw_gbps);
    let reached = same.reduce(f64::max);
    let measure =
        || duplex(ranks, each).map(|seconds| each as f64 / seconds / 1e9).map_err(CommandError::run);
    let alone = least(reached, measure)?;
    let mut line = format!("# sockets alone: {alone:.2} GB/s each way at once");
    if let Some(busbw) = reached {
        line.push_str(&format!("; busbw {busbw:.2} GB/s at that size = {:.0} %", 100.0 * busbw / alone));
    }
    output.say(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_not_below_what_was_reached() {
        let measured = |reached, values: &[f64]| {
            let mut left = values.iter();
            let limit = least(reached, || Ok(*left.next().unwrap_or(&0.0))).unwrap();
            (limit, left.len())
        };
        assert_eq!(measured(None, &[3.0, 9.0]), (3.0, 1));
        assert_eq!(measured(Some(2.0), &[3.0, 9.0]), (3.0, 1));
        assert_eq!(measured(Some(8.0), &[1.0, 9.0, 10.0]), (9.0, 1), "measured again");
        assert_eq!(measured(Some(8.0), &[1.0, 2.0]), (8.0, 0), "the machine stays busy");
    }
}
