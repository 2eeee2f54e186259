//! `allfold faults`: runs seeded fault schedules and checks the contract on failure.

use crate::faults::{self, FaultVerdict, Tally};
use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_cli::progress;
use allfold_report::records::FaultSchedules;

/// Flags of `faults`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold faults
  allfold faults --schedules 100000 --seed 1000
  allfold faults --only 17

Each fault schedule is drawn from its seed: a machine of 2 to 8 ranks, a collective, an algorithm, a size and one to three
faults. Ranks exchange real data on virtual time. Every rank must end with the right result or with an error that names
the culprit. A schedule that breaks this contract is printed with the command that runs it again.")]
pub(crate) struct Args {
    /// How many fault schedules, 1 to 100000000
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    schedules: u64,
    /// The seed of the first schedule, 0 to 2^64 - 1
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Run the schedule of this seed, 0 to 2^64 - 1, alone, and print how every rank ended
    #[arg(long, value_name = "SEED", conflicts_with_all = ["schedules", "seed"])]
    only: Option<u64>,
    #[command(flatten)]
    common: Common,
}

/// Runs the fault schedules and prints the table.
pub fn run(args: &Args) -> CommandResult {
    let mut output = RunOutput::open(args.common.json.as_deref(), args.only.or(Some(args.seed)))?;
    output.check_text()?;
    if let Some(seed) = args.only {
        let verdict = faults::run(seed).map_err(CommandError::run)?;
        output.say(in_words(&verdict))?;
        output.close()?;
        return if verdict.holds() { Ok(()) } else { Err(broken(&verdict)) };
    }
    let bar = progress::bar(args.schedules, "fault schedules");
    let (mut tally, mut first) = (Tally::default(), None);
    for seed in (args.seed..=u64::MAX).take(usize::try_from(args.schedules).unwrap_or(usize::MAX)) {
        let verdict = faults::run(seed).map_err(CommandError::run)?;
        tally.add(&verdict);
        bar.inc(1);
        if !verdict.holds() {
            output.say(in_words(&verdict))?;
            first.get_or_insert(verdict);
        }
    }
    bar.finish_and_clear();
    output.say(table(args, &tally))?;
    output.record(&FaultSchedules {
        schedules: tally.schedules,
        faults: tally.injected,
        attributed: tally.attributed,
        hangs: tally.hangs,
        wrong_results: tally.wrong,
        misattributed: tally.misattributed,
    })?;
    output.close()?;
    first.map_or(Ok(()), |verdict| Err(broken(&verdict)))
}

/// A fault schedule and its outcome as text.
fn in_words(verdict: &FaultVerdict) -> String {
    let mut lines = vec![format!("# schedule {}: {}", verdict.seed, verdict.case)];
    lines.extend(verdict.ranks.iter().map(|rank| format!("#   {rank}")));
    let end = match verdict {
        FaultVerdict { hung: true, .. } => "it HANGS",
        FaultVerdict { wrong: true, .. } => "a result is WRONG",
        FaultVerdict { misattributed: true, .. } => "an error does NOT NAME the culprit",
        FaultVerdict { attributed: true, .. } => {
            "every rank has the right result or an error that names the culprit"
        }
        _ => "every rank has the right result",
    };
    lines.push(format!("#   {end}; events {:016x}; again: {}", verdict.event_hash, verdict.replay()));
    lines.join("\n")
}

fn broken(verdict: &FaultVerdict) -> CommandError {
    CommandError::check(format!(
        "fault schedule {} breaks the failure contract; `{}` runs it again",
        verdict.seed,
        verdict.replay()
    ))
}

fn table(args: &Args, tally: &Tally) -> String {
    let last = args.seed.saturating_add(tally.schedules.saturating_sub(1));
    let mut lines = vec![
        format!("# allfold faults: schedules {} to {last}; ranks carry data on virtual time", args.seed),
        "| schedules | faults | all right | error, culprit named | hangs | wrong results | error, culprit not named |".into(),
        "|---|---|---|---|---|---|---|".into(),
        format!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            tally.schedules, tally.injected, tally.right, tally.attributed, tally.hangs, tally.wrong, tally.misattributed
        ),
        String::new(),
        "| fault | injected | in schedules with an error |".into(),
        "|---|---|---|".into(),
    ];
    lines.extend(
        tally.kinds.iter().map(|(kind, (count, attributed))| format!("| {kind} | {count} | {attributed} |")),
    );
    lines.join("\n")
}
