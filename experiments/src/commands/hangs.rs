//! `allfold hangs`: seeded hangs, and how often the triage of their dumps is right.

use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::{RunOutput, folder, replace};
use allfold_cli::progress;
use allfold_report::records::HangJudged;
use allfold_triage::seeded::{CaseScore, SeededCase, Withheld};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Flags of `hangs`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold hangs
  allfold hangs --cases 1000 --seed 7 --json hangs.jsonl
  allfold hangs --cases 20 --keep cases

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
    #[command(flatten)]
    common: Common,
}

/// Draws and judges the cases, and prints the table.
///
/// # Errors
/// A folder or a file that cannot be written.
pub fn run(args: &Args) -> CommandResult {
    let mut output = RunOutput::open(args.common.json.as_deref(), Some(args.seed))?;
    output.check_text()?;
    let bar = progress::bar(args.cases, "cases");
    let mut tallies: BTreeMap<(usize, String), [Tally; 4]> = BTreeMap::new();
    for number in 0..args.cases {
        let case = SeededCase::drawn(args.seed, number);
        if let Some(keep) = &args.keep {
            write(&case, &keep.join(format!("case-{number}")))?;
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
        "# allfold hangs: {} cases of seed {}; % with cause and rank first (wrong: a healthy rank first; open: undecided)",
        args.cases, args.seed
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

fn record(number: u64, case: &SeededCase, withheld: Withheld, score: CaseScore) -> HangJudged {
    let CaseScore { first, second, wrong, undecided, said } = score;
    HangJudged {
        case: number,
        job: format!("{}, modelled", case.job),
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

/// Writes the files of a case into a folder.
fn write(case: &SeededCase, into: &std::path::Path) -> CommandResult {
    folder(into)?;
    case.files.iter().try_for_each(|(name, _, text)| replace(&into.join(name), text.as_bytes()))?;
    let truth = format!("{} rank {} of {} in {}\n", case.fault.name(), case.rank, case.ranks, case.job);
    replace(&into.join("truth.txt"), truth.as_bytes())
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
