//! `scale validate`: compares published training throughput with predictions from the table's row of one GPU.

use crate::scaling::published::{self, ScoreOptions};
use allfold_cli::common::Common;
use allfold_cli::error::CommandResult;
use allfold_cli::output::RunOutput;
use std::path::PathBuf;

/// Flags of `scale validate`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold scale validate tables/*.json
  allfold scale validate tables/*.json --rows --plot errors.svg
  allfold scale validate tables/*.json --without jitter

Nothing is fitted to the tables: each table is predicted from its row of one GPU. `allfold validate` compares predictions
of collectives with measured runs.")]
pub(crate) struct Args {
    /// Published tables of training throughput (JSON)
    #[arg(value_name = "TABLE", required = true)]
    tables: Vec<PathBuf>,
    /// Leave a term out (communication, device-variation, jitter); may be given again
    #[arg(long, value_name = "TERM", value_parser = published::term)]
    without: Vec<String>,
    /// Print every row
    #[arg(long)]
    rows: bool,
    /// Draw the errors into an SVG file
    #[arg(long, value_name = "FILE", value_parser = allfold_cli::files::svg())]
    plot: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Predicts every published table, and prints how far off the predictions are.
pub fn run(args: &Args) -> CommandResult {
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    let options = ScoreOptions { without: args.without.clone(), rows: args.rows, plot: args.plot.clone() };
    published::run(&args.tables, &options, &mut output)?;
    output.close()
}
