//! `scale explain`: which assumptions make a prediction agree with a small published table.

use crate::scaling::explain;
use allfold_cli::common::Common;
use allfold_cli::error::CommandResult;
use allfold_cli::output::RunOutput;

/// Flags of `scale explain`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold scale explain
  allfold scale explain resnet34")]
pub(crate) struct Args {
    /// Which table: resnet34, a100, data-parallel, segmentation or all
    #[arg(value_name = "NAME", default_value = "all")]
    name: String,
    #[command(flatten)]
    common: Common,
}

/// Explains one published table, or all.
pub fn run(args: &Args) -> CommandResult {
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    explain::run(&args.name, &mut output)?;
    output.close()
}
