//! Finds figures that cannot all be true: time, algbw and busbw of a row are three forms of the same figure.
//!
//! ```text
//! algbw = bytes / time        busbw = algbw x factor(collective, ranks)
//! ```
//!
//! Tables print bandwidths to two decimals and times to four digits or so: a difference of half a hundredth plus one per
//! cent is rounding, more is a contradiction (a wrong rank count, a wrong collective, an error in copying). Until June 2020 the algbw
//! that nccl-tests printed for all-gather and reduce-scatter was the busbw.

use super::run::{Run, RunRow};
use allfold_schedules::Collective;

/// The error from rounding to two decimals, in GB/s.
const PRINTED: f64 = 0.006;
/// The error from rounding the time, as a share.
const ROUNDED: f64 = 0.01;
/// The most rows that are asked for the number of ranks, and the most ranks.
const ASKED: usize = 256;
const MOST_RANKS: u32 = 4096;

/// The run with the rows left out that contradict themselves or have 0 bytes. The times were printed to three decimals of `unit_us`
/// microseconds.
///
/// # Errors
/// A run without rows; a run that contradicts itself in half of its rows or more.
pub(super) fn checked(mut run: Run, unit_us: f64) -> Result<Run, String> {
    let factor = run.collective.bus_factor(run.ranks);
    let all = run.rows.len();
    run.rows.retain(|row| row.bytes > 0);
    run.left_out.zero = all - run.rows.len();
    let all = run.rows.len();
    if all == 0 {
        let why =
            if run.left_out.is_empty() { "expected one per size".into() } else { run.left_out.to_string() };
        return Err(format!("the run has no rows that count: {why}"));
    }
    let old = is_old(&run.rows, run.collective);
    let mut reasons = Vec::new();
    run.rows.retain_mut(|row| match reason(row, factor, if old { factor } else { 1.0 }, unit_us) {
        Some(reason) => {
            reasons.push(reason);
            false
        }
        None => true,
    });
    if let Some(first) = reasons.first().filter(|_| reasons.len() * 2 >= all) {
        return Err(format!(
            "the run contradicts itself in {} of {all} rows, as a {} over {} ranks; the first: {first}",
            reasons.len(),
            run.collective,
            run.ranks
        ));
    }
    if old {
        run.remarks.push("algbw as nccl-tests printed it until June 2020: it is the busbw".into());
        run.rows.iter_mut().for_each(|row| row.algbw_gbps = row.bytes as f64 / row.time_us / 1e3);
    }
    run.left_out.contradicting = reasons;
    Ok(run)
}

/// Whether the algbw of all rows is the busbw, where today's nccl-tests prints two figures.
fn is_old(rows: &[RunRow], collective: Collective) -> bool {
    matches!(collective, Collective::AllGather | Collective::ReduceScatter)
        && rows.iter().any(|row| row.algbw_gbps > 1.0)
        && rows.iter().all(|row| row.algbw_gbps == row.busbw_gbps)
}

/// The numbers of ranks at which busbw / algbw is that of most rows; none where the rows do not tell.
pub(super) fn possible_ranks(rows: &[RunRow], collective: Collective) -> Vec<u32> {
    let telling: Vec<&RunRow> = rows.iter().filter(|row| row.algbw_gbps > 1.0).take(ASKED).collect();
    let agrees = |row: &&&RunRow, factor: f64| {
        let follows = row.algbw_gbps * factor;
        (row.busbw_gbps - follows).abs() <= PRINTED * (1.0 + factor) + 1e-4 * follows
    };
    let fits = |ranks: &u32| {
        let factor = collective.bus_factor(*ranks);
        telling.iter().filter(|row| agrees(row, factor)).count() * 2 > telling.len()
    };
    let constant = collective.bus_factor(2) == collective.bus_factor(3);
    if constant || is_old(rows, collective) { Vec::new() } else { (2..=MOST_RANKS).filter(fits).collect() }
}

fn reason(row: &mut RunRow, factor: f64, algbw_factor: f64, unit_us: f64) -> Option<String> {
    let side = if row.in_place { "in place" } else { "out of place" };
    let says = |what: String| Some(format!("{} bytes {side}: {what}", row.bytes));
    if !(row.time_us > 0.0 && row.time_us.is_finite()) {
        return says(format!("a time of {} us", row.time_us));
    }
    let algbw = row.bytes as f64 / row.time_us / 1e3;
    // A time in milliseconds has three decimals.
    let rounded = ROUNDED + if unit_us > 1.0 { 5e-4 * unit_us / row.time_us } else { 0.0 };
    for (name, printed, follows) in
        [("algbw", row.algbw_gbps, algbw * algbw_factor), ("busbw", row.busbw_gbps, algbw * factor)]
    {
        // Compared in this direction, a NaN is a contradiction as well.
        let agrees = (printed - follows).abs() <= PRINTED + rounded * follows;
        if !agrees {
            return says(format!("{name} {printed} GB/s where {} us make {follows:.2}", row.time_us));
        }
    }
    None
}
