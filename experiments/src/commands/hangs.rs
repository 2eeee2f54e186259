//! `allfold hangs`: seeded hangs, and how often the triage of their dumps is right.

use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::{RunOutput, folder, replace};
use allfold_cli::progress;
use allfold_report::records::HangJudged;
use allfold_triage::seeded::{CaseScore, SeededCase, Truth, Withheld};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Flags of `hangs`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold hangs
  allfold hangs --cases 1000 --seed 7 --json hangs.jsonl
  allfold hangs --cases 20 --keep cases
  allfold hangs --from cases

Each case is a job of 2 to 64 ranks (data parallel, sharded, tensor, pipeline, experts, several groups) with a known fault, or healthy. Its
dumps are judged as `allfold triage` judges them: all of them, without that of the faulty rank, without that of another rank, and
without half of them. Printed is how often cause and rank were named first, how often a healthy rank was, and how often it was left
undecided.")]
pub(crate) struct Args {
    /// How many cases, 1 to 1000000
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    cases: u64,
    /// The seed of the cases, 0 to 2^64 - 1
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Write the dumps of each case into a folder of its own in DIR
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Judge the cases in DIR, as --keep or python/bench/hangs.py wrote them, instead of drawing some
    #[arg(long, value_name = "DIR", conflicts_with_all = ["cases", "keep"])]
    from: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Draws and judges the cases, and prints the table.
///
/// # Errors
/// A folder or a file that cannot be read or written.
pub fn run(args: &Args) -> CommandResult {
    let mut output = RunOutput::open(args.common.json.as_deref(), Some(args.seed))?;
    output.check_text()?;
    let numbers = args.from.as_deref().map_or_else(|| Ok((0..args.cases).collect()), numbers)?;
    let bar = progress::bar(numbers.len() as u64, "cases");
    let mut tallies: BTreeMap<(usize, String), [Tally; 4]> = BTreeMap::new();
    for number in numbers.iter().copied() {
        let case = match &args.from {
            Some(from) => SeededCase::kept(&folder_of(from, number)).map_err(CommandError::usage)?,
            None => SeededCase::drawn(args.seed, number),
        };
        if let Some(keep) = &args.keep {
            write(&case, &folder_of(keep, number))?;
        }
        let row = (case.fault as usize, case.fault.name());
        for (at, withheld) in Withheld::ALL.into_iter().enumerate() {
            let files = case.with(withheld, args.seed ^ number);
            let score = case.score(withheld, &files).map_err(CommandError::run)?;
            tallies.entry(row.clone()).or_default()[at].add(&score);
            output.record(&record(number, &case, withheld, score))?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    output.say(format!(
        "# allfold hangs: {} cases of {}; % with cause and rank first (wrong: a healthy rank first; open: undecided)",
        numbers.len(),
        args.from.as_ref().map_or(format!("seed {}", args.seed), |from| from.display().to_string()),
    ))?;
    output.say("| fault | all dumps | without the culprit's | without a random one | without half |\n|---|---|---|---|---|")?;
    let line = |name: &str, row: &[Tally; 4]| {
        format!("| {name} | {} |", row.iter().map(Tally::told).collect::<Vec<_>>().join(" | "))
    };
    let mut sums = [<[Tally; 4]>::default(), <[Tally; 4]>::default()];
    for ((fault, name), row) in &tallies {
        output.say(line(name, row))?;
        let sum = &mut sums[usize::from(*fault >= 3)];
        sum.iter_mut().zip(row).for_each(|(sum, part)| sum.join(part));
    }
    output.say(line("healthy jobs", &sums[0]))?;
    output.say(line("all faults", &sums[1]))?;
    output.close()
}

/// The folder of a case.
fn folder_of(cases: &Path, number: u64) -> PathBuf {
    cases.join(format!("case-{number}"))
}

/// The numbers of the cases in a folder.
fn numbers(from: &Path) -> Result<Vec<u64>, CommandError> {
    let wrong = |why: &dyn std::fmt::Display| CommandError::usage(format!("{}: {why}", from.display()));
    let entries = std::fs::read_dir(from).map_err(|error| wrong(&error))?.flatten();
    let number = |name: &str| name.strip_prefix("case-")?.parse().ok();
    let mut numbers: Vec<u64> =
        entries.filter_map(|entry| entry.file_name().to_str().and_then(number)).collect();
    numbers.sort_unstable();
    if numbers.is_empty() { Err(wrong(&"holds no folder case-0, case-1 and so on")) } else { Ok(numbers) }
}

fn record(number: u64, case: &SeededCase, withheld: Withheld, score: CaseScore) -> HangJudged {
    let CaseScore { first, second, wrong, undecided, said } = score;
    HangJudged {
        case: number,
        job: case.job.clone(),
        cause: case.fault.name(),
        rank: Some(case.rank).filter(|_| !case.fault.is_healthy()),
        withheld: withheld.name().into(),
        first,
        second,
        wrong,
        undecided,
        said,
    }
}

/// Writes the files of a case into a folder, with the times at which they were written, which are evidence.
fn write(case: &SeededCase, into: &Path) -> CommandResult {
    folder(into)?;
    for (name, written, bytes) in &case.files {
        let path = into.join(name);
        replace(&path, bytes)?;
        let written = UNIX_EPOCH + Duration::from_nanos(written.unsigned_abs());
        let stamped =
            std::fs::File::options().write(true).open(&path).and_then(|file| file.set_modified(written));
        stamped.map_err(|error| CommandError::run(format!("{}: {error}", path.display())))?;
    }
    let truth = serde_json::to_string(&case.truth()).map_err(CommandError::run)?;
    replace(&into.join(Truth::FILE), truth.as_bytes())
}

/// Counts of cases.
#[derive(Clone, Copy, Default)]
struct Tally {
    cases: u64,
    first: u64,
    wrong: u64,
    undecided: u64,
}

impl Tally {
    fn add(&mut self, score: &CaseScore) {
        self.join(&Tally {
            cases: 1,
            first: score.first.into(),
            wrong: score.wrong.into(),
            undecided: score.undecided.into(),
        });
    }

    fn join(&mut self, other: &Tally) {
        self.cases += other.cases;
        self.first += other.first;
        self.wrong += other.wrong;
        self.undecided += other.undecided;
    }

    fn told(&self) -> String {
        let percent = |count: u64| 100.0 * count as f64 / self.cases.max(1) as f64;
        format!(
            "{:.1} ({:.1} wrong, {:.1} open)",
            percent(self.first),
            percent(self.wrong),
            percent(self.undecided)
        )
    }
}
