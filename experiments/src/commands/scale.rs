//! `allfold scale`: scaling curves; without a subcommand, of a training run.

mod collective;
mod notes;
mod page;
mod training;
mod validate;
mod workload;

use allfold_cli::error::CommandResult;
use allfold_cli::launched;
use clap::Subcommand;

/// Flags of `scale`.
#[derive(clap::Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    after_help = "Examples:
  allfold scale --config experiments/configs/digits-cnn.toml --ranks 1,2,4,8,64,1024
  allfold scale --config experiments/configs/digits-cnn.toml --ranks 1..4 --topology switch --html scaling.html
  srun -n 16 allfold scale --config experiments/configs/gpu/resnet50.toml --ranks 1,2,4,8,16 --html scaling.html
  allfold scale workload resnet50 --topology dgx-a100 --ranks 1..131072 --batch 256 --amp
  allfold scale collective all_reduce --algo ring,double_binary_tree --ranks 1..131072
  allfold scale validate tables/*.json

Without a command, `scale` trains the network of --config. Measured points: threads of this machine, up to one rank per core, or
per GPU where the configuration has device = \"cuda\"; under a launcher, its first ranks, a process each. sim: real arithmetic on the virtual clock, up to --sim-ranks ranks.
modeled: shapes, FLOPs and bytes alone, for every rank count. Efficiency is throughput divided by that of as many single
ranks of the same kind; where the strategy or the machine needs more than one rank, by that of the fewest ranks. Of simulated
devices `fits` says where a rank needs more memory than its device has. Rank counts that do not fit the strategy or the machine
are left out and named.

A network that `scale workload` knows too gets other times from --config: a step of GPT-2 takes 0.9 to 1.9 times as long in f32,
and 0.6 to 1.0 times with AMP, on six GPUs from V100 to B200. --config models the kernels of Allfold, attention fused and over the
pairs that a causal mask leaves, all at the share of the peak that large models reach on tensor cores (0.4; A100 0.52); the table
models those of PyTorch, each kind at a share of its own (large products: 0.85 in f32, 0.65 on tensor cores). Memory differs too:
--config counts what Allfold's trainer holds, activations in f32 with AMP too and the buffers that it keeps to use again; the table
what PyTorch stores, f16 activations with AMP and the scores of attention. Take --config to compare strategies and keys,
`scale workload` to compare machines, and its --single-gpu-rate where samples/s themselves matter; of memory, --config for
`allfold train`, `scale workload` for PyTorch."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    kind: Option<Kind>,
    #[command(flatten)]
    training: training::Args,
}

#[derive(Subcommand, Debug)]
enum Kind {
    /// Predict how a large network trains, from its layer table
    Workload(workload::Args),
    /// Time one call of a collective over rank counts, by several algorithms
    Collective(collective::Args),
    /// Compare predictions with published tables of training throughput
    Validate(validate::Args),
}

/// Draws the scaling curve that the flags describe.
///
/// # Errors
/// Flags that contradict each other; a point that cannot be measured or predicted.
pub fn run(args: &Args) -> CommandResult {
    if args.kind.is_some() {
        launched::here("scale with a subcommand")?;
    }
    match &args.kind {
        Some(Kind::Workload(args)) => workload::run(args),
        Some(Kind::Collective(args)) => collective::run(args),
        Some(Kind::Validate(args)) => validate::run(args),
        None => training::run(&args.training),
    }
}
