//! `allfold report`: the standard experiment from end to end, or given records, as one HTML file.
//!
//! ```text
//! prove  ->  train on threads and on sim  ->  measure threads  ->  predict collectives  ->  predict training
//!    \______________\__________________________\_________________\______________________/
//!                                 records.jsonl  ->  report.html
//! ```
//!
//! A page of given records also has NCCL's line where it can be predicted; `records.jsonl` holds the given records alone.

mod experiment;
mod files;
mod nccl_lines;
mod predictions;
mod scale;

use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::{self, RunOutput};
use allfold_report::records::{Records, Stamp, line};
use allfold_sim::read_text_at_most;
use std::path::PathBuf;

/// Flags of `report`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold report                                  the standard experiment, into allfold-report/
  allfold report --quick --out /tmp/report
  allfold report --from runs.jsonl more.jsonl     a page of these records

Writes report.html, records.jsonl, every plot as an .svg file (scaling.svg, ...) and, from the standard experiment,
trace.json (a Chrome trace of a training run on virtual time). The exit code is 1 if a proof fails, a result is wrong, or
bits differ.")]
pub(crate) struct Args {
    /// The folder to write to; it is created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "allfold-report")]
    out: PathBuf,
    /// Use fewer rank counts, steps and sizes
    #[arg(long, conflicts_with = "from")]
    quick: bool,
    /// Report the records of these files instead of running the experiment
    #[arg(long, value_name = "FILE", num_args = 1..)]
    from: Vec<PathBuf>,
    /// The simulated machine: a name (`allfold machines` lists them) or a file
    #[arg(long, value_name = "T", default_value = scale::TOPOLOGY, conflicts_with = "from")]
    topology: String,
}

/// Runs the experiment, or reads records, and writes the page.
pub fn run(args: &Args) -> CommandResult {
    if args.from.is_empty() { experiment::run(&args.out, args.quick, &args.topology) } else { given(args) }
}

/// The greatest length of a file of records in bytes; the page that is drawn from it holds most of its records.
const LONGEST: u64 = 32 << 20;

fn given(args: &Args) -> CommandResult {
    let mut all = String::new();
    for path in &args.from {
        let text = read_text_at_most(path, LONGEST, "a file of records").map_err(|error| {
            CommandError::usage(format!("{}: {error}; name files of records", path.display()))
        })?;
        Records::parse(&text).map_err(|error| CommandError::usage(format!("{}: {error}", path.display())))?;
        all.push_str(text.trim_end());
        all.push('\n');
    }
    let records = Records::parse(&all).map_err(CommandError::usage)?;
    let mut output = RunOutput::open(None, None)?;
    let mut drawn = all.clone();
    for (record, command) in nccl_lines::missing(&records)? {
        let stamp = Stamp { command, ..output.stamp().clone() };
        drawn.push_str(&line(&record, &stamp).map_err(CommandError::run)?);
        drawn.push('\n');
    }
    let drawn = Records::parse(&drawn).map_err(CommandError::run)?;
    let made = allfold_report::render(&drawn, output.stamp())?;
    output::folder(&args.out)?;
    files::write(&args.out, &all, &made)?;
    output.say(format!("{} records, {}", records.len(), args.out.join("report.html").display()))
}
