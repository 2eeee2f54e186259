//! Finds figures that cannot all be true: time, algbw and busbw of a row are three forms of the same figure.
//!
//! ```text
//! algbw = bytes / time        busbw = algbw x factor(collective, ranks)
//! ```
//!
//! Tables print bandwidths to two decimals and times to four digits or so: a difference of half a hundredth plus one per
//! cent is rounding, more is a contradiction (a wrong rank count, a wrong collective, an error in copying).

use super::flaw::Flaw;
use super::run::{Run, RunRow};

/// The error from rounding to two decimals, in GB/s.
const PRINTED: f64 = 0.006;
/// The error from rounding the time, as a share.
const ROUNDED: f64 = 0.01;

/// Moves the rows that contradict themselves to `left_out`; refuses a run where these are half or more.
pub(super) fn leave_out(run: &mut Run) -> Result<(), Flaw> {
    let factor = run.collective.bus_factor(run.ranks);
    let all = run.rows.len();
    if all == 0 {
        return Err(Flaw::whole("the run has no rows; expected one per size"));
    }
    let mut reasons = Vec::new();
    run.rows.retain(|row| match reason(row, factor) {
        Some(reason) => {
            reasons.push(reason);
            false
        }
        None => true,
    });
    if let Some(first) = reasons.first().filter(|_| reasons.len() * 2 >= all) {
        return Err(Flaw::whole(format!(
            "the run contradicts itself in {} of {all} rows, as a {} over {} ranks; the first: {first}",
            reasons.len(),
            run.collective,
            run.ranks
        )));
    }
    run.left_out = reasons;
    Ok(())
}

fn reason(row: &RunRow, factor: f64) -> Option<String> {
    let side = if row.in_place { "in place" } else { "out of place" };
    let says = |what: String| Some(format!("{} bytes {side}: {what}", row.bytes));
    if !(row.time_us > 0.0 && row.time_us.is_finite()) {
        return says(format!("a time of {} us", row.time_us));
    }
    let algbw = row.bytes as f64 / row.time_us / 1e3;
    for (name, printed, follows) in
        [("algbw", row.algbw_gbps, algbw), ("busbw", row.busbw_gbps, algbw * factor)]
    {
        // Compared in this direction, a NaN is a contradiction as well.
        let agrees = (printed - follows).abs() <= PRINTED + ROUNDED * follows;
        if !agrees {
            return says(format!("{name} {printed} GB/s where {} us make {follows:.2}", row.time_us));
        }
    }
    None
}
