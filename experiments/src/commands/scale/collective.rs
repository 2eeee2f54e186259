//! `scale collective`: one collective call over increasing rank counts, by several algorithms.

use crate::scaling::collective::{self, CollectiveScaling};
use allfold_cli::common::Common;
use allfold_cli::error::CommandResult;
use allfold_cli::output::RunOutput;

/// Flags of `scale collective`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold scale collective all_reduce --algo ring,double_binary_tree --ranks 1..131072
  allfold scale collective all_reduce --algo ring --size 64M --lanes 16 --topology dgx-a100 --ranks 8..1024 --plot curve.svg

All times are virtual; `allfold simulate` times one number of ranks and many sizes.")]
pub(crate) struct Args {
    #[command(flatten)]
    call: CollectiveScaling,
    #[command(flatten)]
    common: Common,
}

/// Times the call at every rank count by every algorithm, and prints the table.
pub fn run(args: &Args) -> CommandResult {
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    collective::run(&args.call, &mut output)?;
    output.close()
}
