//! nccl-tests' table, column for column, so that people and parsers that read nccl-tests' tables read these.
//!
//! ```text
//! #                                                              out-of-place                       in-place
//! #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
//! #        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
//!         1024           256     float     sum      -1    12.34    0.08    0.12      0    12.10    0.08    0.13      0
//! ```
//!
//! Measured and simulated rows have a table each: [`measured_row`] takes measured records and no others. The header of a
//! simulated table marks it as simulated, and the table has one more column, the bound that no time may beat.

use crate::measure::statistics::CallTimes;
use allfold_cli::names;
use allfold_collectives::DType;
use allfold_report::records::{CollectiveCall, MeasuredCollective, SimulatedCollective};

/// The three header lines of a measured table.
pub fn measured_header() -> String {
    header("", "", "", ["", ""])
}

/// The header of a measured table with the spread of single calls behind each side, as nccl-tests prints it with `-I 1`.
pub fn spread_header() -> String {
    let names = ["i_min", "i_max", "i_p99", "i_cv%"].map(|name| format!("  {name:>7}")).concat();
    let units = ["(us)", "(us)", "(us)", "(%)"].map(|unit| format!("  {unit:>7}")).concat();
    header("", "", "", [&names, &units])
}

/// The three header lines of a simulated table: virtual times, with a column for the bound.
pub fn simulated_header() -> String {
    header("   simulated", "    bound", "     (us)", ["", ""])
}

/// The header; `more` has the names and units of further columns of each side.
fn header(title: &str, name: &str, unit: &str, more: [&str; 2]) -> String {
    let side_names = format!("  {:>7}  {:>6}  {:>6} {:>6}{}", "time", "algbw", "busbw", "#wrong", more[0]);
    let side_units = format!("  {:>7}  {:>6}  {:>6} {:>6}{}", "(us)", "(GB/s)", "(GB/s)", "", more[1]);
    let wide = more[0].len();
    let titles = format!("#{:61}{:<left$}{:>17}{title}", "", " out-of-place", "in-place", left = 27 + wide);
    let names = format!(
        "#{:>11}  {:>12}  {:>8}  {:>6}  {:>6}{side_names}{side_names}{name}",
        "size", "count", "type", "redop", "root"
    );
    let units = format!(
        "#{:>11}  {:>12}  {:>8}  {:>6}  {:>6}{side_units}{side_units}{unit}",
        "(B)", "(elements)", "", "", ""
    );
    [titles, names, units].map(|line| line.trim_end().to_string()).join("\n")
}

/// The table row of one measured size. A form that the collective lacks (in place or out of place) is printed as N/A.
pub fn measured_row(
    out_of_place: Option<&MeasuredCollective>,
    in_place: Option<&MeasuredCollective>,
) -> String {
    row([out_of_place, in_place], |_| String::new())
}

/// The row of a size in a table with [`spread_header`]; the spreads are those of single calls, out of place and in place.
pub fn spread_row(sides: [Option<&MeasuredCollective>; 2], spreads: [Option<CallTimes>; 2]) -> String {
    row(sides, |at| {
        let values = spreads[at].map(|of| [of.least, of.greatest, of.percentiles[2], of.variation()]);
        let text = |at: usize| values.map_or_else(|| "N/A".into(), |values| time(values[at]));
        (0..4).map(|at| format!("  {:>7}", text(at))).collect()
    })
}

/// A row of two sides, out of place and in place, with further columns behind each.
fn row(sides: [Option<&MeasuredCollective>; 2], more: impl Fn(usize) -> String) -> String {
    let form = |at: usize| match sides[at] {
        Some(r) => side(r.time_us, r.algbw_gbps, r.busbw_gbps, r.wrong_elements),
        None => format!("  {:>7}  {:>6}  {:>6} {:>6}", "N/A", "N/A", "N/A", "N/A"),
    };
    let called = sides.iter().flatten().next().map_or(String::new(), |record| call(&record.call));
    format!("{called}{}{}{}{}", form(0), more(0), form(1), more(1))
}

/// The table row of one simulated size, out of place and in place.
pub fn simulated_row(out_of_place: &SimulatedCollective, in_place: &SimulatedCollective) -> String {
    let side = |r: &SimulatedCollective| side(r.time_us, r.algbw_gbps, r.busbw_gbps, r.wrong_elements);
    let bound = in_place.bound_us.map_or_else(|| "N/A".into(), time);
    format!("{}{}{}  {bound:>7}", call(&out_of_place.call), side(out_of_place), side(in_place))
}

/// The closing lines of a table: the number of wrong elements (`None` if no result was checked), and the mean bus bandwidth
/// over all sizes, in place and out of place.
pub fn footer(collective: &str, wrong: Option<u64>, busbw: &[f64]) -> String {
    let verdict = match wrong {
        None => "N/A".into(),
        Some(0) => "0 OK".into(),
        Some(wrong) => format!("{wrong} FAILED"),
    };
    let mean = if busbw.is_empty() { 0.0 } else { busbw.iter().sum::<f64>() / busbw.len() as f64 };
    format!(
        "# Out of bounds values : {verdict}\n# Avg bus bandwidth    : {}\n#\n# Collective test concluded: {collective}",
        significant(mean)
    )
}

/// The line about how exact the measured times are.
pub fn spread(records: &[MeasuredCollective]) -> String {
    let shares = records.iter().map(|record| 100.0 * record.time_error_us / record.time_us);
    let most = shares.filter(|share| *share > 0.0).fold(0.0, f64::max);
    let errors = if most > 0.0 { format!("up to {most:.1} % of a time") } else { "N/A".into() };
    format!("# Standard errors      : {errors}")
}

fn call(call: &CollectiveCall) -> String {
    let dtype = DType::ALL.iter().find(|d| d.name() == call.dtype).map_or("?", |&d| names::nccl_dtype(d));
    let op = call.op.as_deref().unwrap_or("none");
    let root = call.root.map_or_else(|| "-1".into(), |root| root.to_string());
    format!("{:>12}  {:>12}  {dtype:>8}  {op:>6}  {root:>6}", call.bytes, call.count)
}

fn side(time_us: f64, algbw: f64, busbw: f64, wrong: Option<u64>) -> String {
    let wrong = wrong.map_or_else(|| "N/A".into(), |wrong| wrong.to_string());
    format!("  {:>7}  {algbw:>6.2}  {busbw:>6.2} {wrong:>6}", time(time_us))
}

/// A time in microseconds, in nccl-tests' five significant digits.
fn time(us: f64) -> String {
    match us {
        us if us >= 9_999.95 => format!("{us:.0}"),
        us if us >= 99.995 => format!("{us:.1}"),
        us => format!("{us:.2}"),
    }
}

/// A number in six significant digits, as C's `%g` prints it.
fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".into();
    }
    let decimals = (5 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> MeasuredCollective {
        let call = CollectiveCall {
            collective: "all_reduce".into(),
            algorithm: "ring".into(),
            ranks: 8,
            dtype: "f32".into(),
            op: Some("sum".into()),
            count: 2_097_152,
            bytes: 8_388_608,
            ..CollectiveCall::default()
        };
        MeasuredCollective {
            backend: "threads".into(),
            device: "cpu".into(),
            call,
            iterations: 20,
            time_us: 219.2,
            algbw_gbps: 38.27,
            busbw_gbps: 71.76,
            wrong_elements: Some(0),
            ..MeasuredCollective::default()
        }
    }

    #[test]
    fn a_row_is_laid_out_as_nccl_tests_does() {
        let row = measured_row(
            Some(&record()),
            Some(&MeasuredCollective { time_us: 12_345.6, wrong_elements: None, ..record() }),
        );
        assert_eq!(
            row,
            "     8388608       2097152     float     sum      -1    219.2   38.27   71.76      0    12346   38.27   71.76    N/A"
        );
    }

    #[test]
    fn header_names_stand_over_their_columns() {
        let header = measured_header();
        let lines: Vec<&str> = header.lines().collect();
        let row = measured_row(Some(&record()), None);
        assert!(lines.iter().all(|line| line.starts_with('#')));
        let ends = |text: &str| -> Vec<usize> {
            let bytes = text.as_bytes();
            (0..bytes.len())
                .filter(|&i| bytes[i] != b' ' && bytes.get(i + 1).is_none_or(|&b| b == b' '))
                .collect()
        };
        assert_eq!(ends(&lines[1].replacen('#', " ", 1)), ends(&row), "\n{header}\n{row}");
    }

    #[test]
    fn the_footer_says_ok_only_where_nothing_is_wrong() {
        assert!(
            footer("all_reduce", Some(0), &[1.0, 2.0])
                .contains("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.5\n")
        );
        assert!(footer("all_reduce", Some(3), &[]).contains("3 FAILED"));
        assert_eq!(significant(75.123_456_7), "75.1235");
        assert_eq!(significant(0.001_234), "0.001234");
        assert_eq!(significant(1_234_567.0), "1234567");
    }
}
