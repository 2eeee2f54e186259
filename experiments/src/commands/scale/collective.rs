//! `scale collective`: one collective call over increasing rank counts, by several algorithms.

use crate::scaling::collective::{self, CollectiveScaling};
use allfold_cli::common::Common;
use allfold_cli::error::CommandResult;
use allfold_cli::names;
use allfold_cli::output::RunOutput;
use allfold_collectives::Collective;
use allfold_report::sizes::{RankCounts, Size, some_bytes};
use std::path::PathBuf;

/// Flags of `scale collective`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold scale collective all_reduce --algo ring,double_binary_tree --ranks 1..131072
  allfold scale collective all_reduce --algo ring --size 64M --lanes 16 --topology dgx-a100 --ranks 8..1024 --plot curve.svg

All times are virtual; `allfold simulate` times one number of ranks and many sizes.")]
pub(crate) struct Args {
    /// Which collective: all_reduce, broadcast, all_gather, ...
    #[arg(value_name = "COLLECTIVE", value_parser = names::collective)]
    collective: Collective,
    /// Algorithms, such as ring,double_binary_tree
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true)]
    algo: Vec<String>,
    /// Rank counts of 1 to 1048576, such as 8,64,512; from a long range, its powers of two
    #[arg(long, value_name = "COUNTS")]
    ranks: RankCounts,
    /// The simulated machine: a name (`allfold machines` lists them) or a file
    #[arg(long, value_name = "T", default_value = "nodes8")]
    topology: String,
    /// Size of the call in bytes, 0 to 16383P
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    size: Size,
    /// Parallel channels, 1 to 1024, each on its share of the data
    #[arg(long, value_name = "LANES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    lanes: u32,
    /// Cut chunks into pieces of at most this many bytes, 1 to 16383P [default: the algorithm's own]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes)]
    segment: Option<Size>,
    /// Draw time over ranks into an SVG file
    #[arg(long, value_name = "FILE", value_parser = allfold_cli::files::svg())]
    plot: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Times the call at every rank count by every algorithm, and prints the table.
pub fn run(args: &Args) -> CommandResult {
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    let call = CollectiveScaling {
        collective: args.collective,
        algorithms: args.algo.clone(),
        topology: args.topology.clone(),
        size: args.size,
        lanes: args.lanes,
        segment: args.segment,
    };
    collective::run(&call, &args.ranks, args.plot.as_deref(), &mut output)?;
    output.close()
}
