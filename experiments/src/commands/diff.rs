//! `allfold diff`: how the times of two files of records differ, row by row, and whether one became slower.
//!
//! ```text
//! before.jsonl, after.jsonl  ->  rows of the same call or run  ->  change with its uncertainty  ->  slower, faster, same
//! ```
//!
//! A row is slower if its time rose by more than the tolerance and by more than twice the standard error of the change, so that
//! noise alone is rarely a regression. Several records of one row in a file are averaged.

use allfold_cli::columns;
use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_report::format::{self, counted};
use allfold_report::records::{
    CollectiveCall, MeasuredCollective, MeasuredScale, MeasuredStep, Records, RowChange, Setup,
    SimulatedCollective, SimulatedScale, SimulatedStep, Validated,
};
use allfold_sim::read_text_at_most;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How many standard errors a change must exceed.
const ERRORS: f64 = 2.0;

/// Flags of `diff`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold bench all_reduce --backend threads --ranks 2 -b 1K -e 16M --json before.jsonl
  allfold bench all_reduce --backend threads --ranks 2 -b 1K -e 16M --json after.jsonl
  allfold diff before.jsonl after.jsonl
  allfold diff before.jsonl after.jsonl --tolerance 10

Compares the records of bench, simulate, train, scale and validate; those of simulate also with the measured times in those of
validate. The exit code is 1 if a row became slower.")]
pub(crate) struct Args {
    /// Records of the run to compare with
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Records of the run that is judged
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// A change of a time up to this many percent, 0 to 1000, is no change
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    tolerance: f64,
    #[command(flatten)]
    common: Common,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent),
        _ => Err("write a number of percent from 0 to 1000, such as 5 or 5%".into()),
    }
}

/// The times of one row in one file.
#[derive(Clone, Debug, Default, PartialEq)]
struct Times {
    /// Mean times and their standard errors, in microseconds.
    each: Vec<(f64, f64)>,
    /// The number of rows before this one in the file.
    place: usize,
}

impl Times {
    /// The mean, and its standard error from those of the single times.
    fn mean(&self) -> (f64, f64) {
        let count = self.each.len().max(1) as f64;
        let mean = self.each.iter().map(|time| time.0).sum::<f64>() / count;
        let error = self.each.iter().map(|time| time.1 * time.1).sum::<f64>().sqrt() / count;
        (mean, error)
    }
}

/// Compares the rows that both files have, prints them, and fails if one became slower.
pub fn run(args: &Args) -> CommandResult {
    let [before, after] = [read(&args.before)?, read(&args.after)?];
    let common = |before: &Rows, after: &Rows| before.keys().any(|row| after.contains_key(row));
    // Measured runs name no topology and no element type, so that they are compared with simulated calls by size and ranks.
    let (before, after, beside) = match (before.measured, after.measured) {
        _ if common(&before.rows, &after.rows) => (before.rows, after.rows, None),
        (measured, _) if common(&measured, &after.simulated) => {
            (measured, after.simulated, Some("measured by simulated"))
        }
        (_, measured) if common(&before.simulated, &measured) => {
            (before.simulated, measured, Some("simulated by measured"))
        }
        _ => (before.rows, after.rows, None),
    };
    let mut rows: Vec<(&String, &Times)> = before.iter().collect();
    rows.sort_by_key(|(_, times)| times.place);
    let changes: Vec<RowChange> = rows
        .into_iter()
        .filter_map(|(row, times)| Some(change(row, times, after.get(row)?, args.tolerance / 100.0)))
        .collect();
    if changes.is_empty() {
        let first = |rows: &Rows| {
            let first = rows.iter().min_by_key(|(_, times)| times.place);
            first.map_or_else(|| "no row".into(), |(row, _)| format!("`{row}`"))
        };
        return Err(CommandError::usage(format!(
            "{} and {} have no row in common: the first are {} and {}; compare runs of the same command",
            args.before.display(),
            args.after.display(),
            first(&before),
            first(&after)
        )));
    }
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    beside.map_or(Ok(()), |which| output.say(format!("times of the same calls, {which}")))?;
    output.say(columns::table(
        &changes,
        &[
            ("row", |change| change.row.clone()),
            ("before (us)", |change| format!("{:.2}", change.before_us)),
            ("after (us)", |change| format!("{:.2}", change.after_us)),
            ("change (%)", |change| format!("{:.1}", 100.0 * change.change)),
            ("+- (%)", |change| format!("{:.1}", 100.0 * change.change_error)),
            ("verdict", |change| change.verdict.clone()),
        ],
    ))?;
    changes.iter().try_for_each(|change| output.record(change))?;
    for (path, own, other) in [(&args.before, &before, &after), (&args.after, &after, &before)] {
        let alone = own.keys().filter(|row| !other.contains_key(*row)).count();
        if alone > 0 {
            output.say(format!("only in {}: {}", path.display(), counted(alone, "row")))?;
        }
    }
    let of = |verdict: &str| changes.iter().filter(|change| change.verdict == verdict).count();
    output.say(format!("{} slower, {} faster, {} same", of("slower"), of("faster"), of("same")))?;
    output.close()?;
    let worst = changes.iter().filter(|change| change.verdict == "slower");
    match worst.max_by(|a, b| a.change.total_cmp(&b.change)) {
        None => Ok(()),
        Some(worst) => Err(CommandError::check(format!(
            "{} became slower, the most {}: {:+.1} % +- {:.1} %",
            counted(of("slower"), "row"),
            worst.row,
            100.0 * worst.change,
            100.0 * worst.change_error
        ))),
    }
}

fn change(row: &str, before: &Times, after: &Times, tolerance: f64) -> RowChange {
    let ((before_us, before_error), (after_us, after_error)) = (before.mean(), after.mean());
    let ratio = after_us / before_us;
    let relative = |error: f64, time: f64| if time > 0.0 { error / time } else { 0.0 };
    let change_error = ratio * relative(before_error, before_us).hypot(relative(after_error, after_us));
    let certain = |change: f64| change > tolerance && change > ERRORS * change_error;
    let verdict = match ratio - 1.0 {
        change if certain(change) => "slower",
        change if certain(-change) => "faster",
        _ => "same",
    };
    RowChange {
        row: row.into(),
        before_us,
        after_us,
        change: ratio - 1.0,
        change_error,
        verdict: verdict.into(),
    }
}

/// The greatest length of a file of records in bytes.
const LONGEST: u64 = 32 << 20;

/// Rows by name.
type Rows = BTreeMap<String, Times>;

/// The times of a file.
struct Read {
    /// All rows that can be compared with the same row of another file.
    rows: Rows,
    /// Calls of measured runs that `validate` read, by collective, size and ranks.
    measured: Rows,
    /// Simulated calls by the same.
    simulated: Rows,
}

/// The rows of a file and their times.
fn read(path: &Path) -> CommandResult<Read> {
    let wrong = |what: String| CommandError::usage(format!("{}: {what}", path.display()));
    let text = read_text_at_most(path, LONGEST, "a file of records")
        .map_err(|error| wrong(format!("{error}; name a file of records")))?;
    let records = Records::parse(&text).map_err(wrong)?;
    let [mut rows, mut measured, mut simulated] = [const { Rows::new() }; 3];
    let add_to = |rows: &mut Rows, row: String, time: f64, error: f64| {
        if time > 0.0 && time.is_finite() {
            let place = rows.len();
            let times = rows.entry(row).or_insert_with(|| Times { place, ..Times::default() });
            times.each.push((time, error));
        }
    };
    let short = |collective: &str, bytes: u64, ranks: u32| {
        format!("{collective} of {}, {}", format::bytes(bytes), counted(ranks as usize, "rank"))
    };
    let mut add = |row: String, time: f64, error: f64| add_to(&mut rows, row, time, error);
    for r in records.all::<Validated>() {
        let call = short(&r.collective, r.bytes, r.ranks);
        add(format!("{call} of {}, predicted by {}", r.run, r.predictor), r.predicted_us, 0.0);
        add_to(&mut measured, call, r.measured_us, 0.0);
    }
    for r in records.all::<MeasuredCollective>() {
        let form = if r.in_place { "in place" } else { "out of place" };
        let path = r.path.as_deref().map_or(String::new(), |path| format!(", {path}"));
        add(
            format!("{} on {} {}{path}, {form}, measured", call(&r.call), r.backend, r.device),
            r.time_us,
            r.time_error_us,
        );
    }
    for r in records.all::<SimulatedCollective>() {
        let faults = if r.faults.is_empty() { String::new() } else { format!(", {}", r.faults.join(" ")) };
        let lanes = r.lanes.map_or(String::new(), |lanes| format!(", {lanes} lanes"));
        let how = format!("{}{lanes}{faults}", r.sharing);
        let CollectiveCall { collective, bytes, ranks, .. } = &r.call;
        add_to(&mut simulated, short(collective, *bytes, *ranks), r.time_us, 0.0);
        add(format!("{} on {}, {how}, simulated", call(&r.call), r.topology), r.time_us, 0.0);
    }
    for r in records.all::<MeasuredScale>() {
        let row = format!("{} with {} each on {}, scale, measured", setup(&r.setup), r.batch, r.topology);
        add(row, r.time_us, r.time_error_us);
    }
    for r in records.all::<SimulatedScale>() {
        let row = format!("{} with {} each on {}, scale, simulated", setup(&r.setup), r.batch, r.topology);
        add(row, r.time_us, 0.0);
    }
    for r in records.all::<MeasuredStep>() {
        if let Some(end) = &r.end {
            add(format!("{}, step, measured", setup(&r.setup)), end.time_us, 0.0);
        }
    }
    for r in records.all::<SimulatedStep>() {
        if let Some(end) = &r.end {
            add(format!("{}, step, simulated", setup(&r.setup)), end.time_us, 0.0);
        }
    }
    match rows.is_empty() {
        true => Err(wrong(
            "no record has a time to compare; give records of bench, simulate, train, scale or validate"
                .into(),
        )),
        false => Ok(Read { rows, measured, simulated }),
    }
}

fn call(call: &CollectiveCall) -> String {
    let op = call.op.as_deref().map_or(String::new(), |op| format!(" {op}"));
    let algorithm = if call.algorithm.starts_with("NCCL ") { "NCCL" } else { &call.algorithm };
    format!(
        "{} of {} {}{op} by {algorithm}, {}",
        call.collective,
        format::bytes(call.bytes),
        call.dtype,
        counted(call.ranks as usize, "rank")
    )
}

fn setup(setup: &Setup) -> String {
    let Setup { backend, device, model, strategy, ranks, .. } = setup;
    format!("{model} by {strategy} on {}, {backend} {device}", counted(*ranks as usize, "rank"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(each: &[(f64, f64)]) -> Times {
        Times { each: each.to_vec(), place: 0 }
    }

    #[test]
    fn a_row_is_slower_only_beyond_tolerance_and_noise() {
        let verdict =
            |before, after: (f64, f64)| change("r", &times(&[before]), &times(&[after]), 0.05).verdict;
        assert_eq!(verdict((100.0, 0.0), (110.0, 0.0)), "slower");
        assert_eq!(verdict((100.0, 0.0), (104.0, 0.0)), "same", "within the tolerance");
        assert_eq!(verdict((100.0, 4.0), (110.0, 5.0)), "same", "within the noise");
        assert_eq!(verdict((100.0, 1.0), (80.0, 1.0)), "faster");
    }

    /// Regression: rows were sorted as text, 16 MiB before 2 MiB.
    #[test]
    fn rows_stay_in_the_order_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.jsonl");
        let args = ["simulate", "all_reduce", "--topology", "switch", "--ranks", "4"];
        let sizes = ["-b", "1M", "-e", "16M", "--json", path.to_str().unwrap()];
        let words = args.iter().chain(&sizes).map(Into::into).collect();
        assert_eq!(crate::run_words(words, Vec::new()), 0);
        let rows = read(&path).unwrap().rows;
        let mut places: Vec<(usize, &String)> = rows.iter().map(|(row, times)| (times.place, row)).collect();
        places.sort();
        let sizes: Vec<&str> = places.iter().map(|(_, row)| row.split(' ').nth(2).unwrap()).collect();
        assert_eq!(sizes, ["1", "2", "4", "8", "16"]);
    }

    #[test]
    fn several_records_of_a_row_are_averaged() {
        let (mean, error) = times(&[(90.0, 3.0), (110.0, 4.0)]).mean();
        assert_eq!((mean, error), (100.0, 2.5));
        let changed = change("r", &times(&[(100.0, 3.0)]), &times(&[(200.0, 8.0)]), 0.05);
        assert_eq!((changed.change, changed.change_error), (1.0, 0.1));
    }
}
