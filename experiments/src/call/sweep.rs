//! The flags that `bench` and `simulate` share, spelled as in nccl-tests, and the sweep of sizes that they describe.

use crate::call::plan::Choice;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::{launched, names};
use allfold_collectives::registry::{self, Algorithm, Shape};
use allfold_collectives::{Collective, DType, Rank, ReduceOp};
use allfold_report::sizes::{Growth, Size, Sweep, rank_count, some_bytes};

/// The only size of a sweep if neither `-b` nor `-e` is given, as in nccl-tests.
const DEFAULT_SIZE: Size = Size(32 << 20);

/// Flags of a sweep over sizes.
#[derive(clap::Args, Debug, Clone)]
pub struct SweepArgs {
    /// Which collective: all_reduce, broadcast, all_gather, ...
    #[arg(value_name = "COLLECTIVE", value_parser = names::collective)]
    pub collective: Collective,
    /// Number of ranks, 1 to 1048576 [default under a launcher: the processes that it has started]
    #[arg(long, value_name = "N", value_parser = rank_count, default_value = launched::ranks(), hide_default_value = true,
        required = launched::ranks().is_none())]
    pub ranks: u32,
    /// Algorithm, or several such as ring,double_binary_tree, each with a table of its own [default: by size, among
    /// algorithms that give the same bits]
    #[arg(long, value_name = "NAMES")]
    pub algo: Option<String>,
    /// Smallest size, 0 to 16383P [default: 32M, or -e if that is less]
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", help_heading = "Sizes")]
    pub least: Option<Size>,
    /// Largest size, 0 to 16383P [default: 32M, or -b if that is more]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", help_heading = "Sizes")]
    pub greatest: Option<Size>,
    /// Factor from each size to the next, 2 to 4294967295
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", default_value_t = 2, value_parser = clap::value_parser!(u64).range(..1 << 32), help_heading = "Sizes")]
    pub factor: u64,
    /// Bytes from each size to the next, 1 to 16383P; instead of -f
    #[arg(
        short = 'i',
        long = "stepbytes",
        value_name = "SIZE",
        conflicts_with = "factor",
        help_heading = "Sizes"
    )]
    pub step: Option<Size>,
    /// Element type: f32, bf16, ... or nccl-tests' float, bfloat16, ...
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "f32", value_parser = names::dtype)]
    pub dtype: DType,
    /// Reduction operator: sum, prod, min, max, avg
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum", value_parser = names::op)]
    pub op: ReduceOp,
    /// Root rank of broadcast, reduce, gather and scatter: 0 to --ranks less 1
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value_t = 0)]
    pub root: u32,
    /// Cut chunks into pieces of at most this many bytes, 1 to 16383P [default: the algorithm's own]
    #[arg(long, value_name = "SIZE", value_parser = some_bytes, help_heading = "Execution")]
    pub segment: Option<Size>,
    /// Number of steps that a rank may have in flight, 1 to 1048576 [default: 64 for pipelined algorithms, 1 for others]
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u32).range(1..=1 << 20), help_heading = "Execution")]
    pub window: Option<u32>,
}

/// The algorithm of this name.
///
/// # Errors
/// No algorithm has this name; for `nccl`, the error names the commands that simulate and measure NCCL.
pub fn algorithm(collective: Collective, name: &str) -> CommandResult<&'static Algorithm> {
    registry::find(collective, name).map_err(|error| match name.eq_ignore_ascii_case("nccl") {
        true => CommandError::usage(
            "--algo nccl is NCCL's own choice, which `allfold simulate` times on a machine and `allfold bench --backend nccl` on GPUs",
        ),
        false => CommandError::usage(error),
    })
}

impl SweepArgs {
    /// The sweep of each algorithm that `--algo` names, in order.
    ///
    /// # Errors
    /// A name is empty, or named twice.
    pub fn each(&self) -> CommandResult<Vec<SweepArgs>> {
        let Some(names) = &self.algo else { return Ok(vec![self.clone()]) };
        let names: Vec<&str> = names.split(',').map(str::trim).collect();
        for (at, name) in names.iter().enumerate() {
            if name.is_empty() {
                return Err(CommandError::usage(
                    "--algo has an empty name; write ring or ring,double_binary_tree",
                ));
            }
            if names[..at].contains(name) {
                return Err(CommandError::usage(format!(
                    "--algo names {name} twice; name each algorithm once"
                )));
            }
        }
        Ok(names.iter().map(|name| SweepArgs { algo: Some((*name).into()), ..self.clone() }).collect())
    }

    /// The message sizes in bytes, in order. A barrier has one size, 0.
    ///
    /// # Errors
    /// As [`Sweep::sizes`].
    pub fn sizes(&self) -> CommandResult<Vec<u64>> {
        if self.collective == Collective::Barrier {
            return Ok(vec![0]);
        }
        self.sweep().sizes().map_err(CommandError::usage)
    }

    fn sweep(&self) -> Sweep {
        let least = self.least.unwrap_or_else(|| self.greatest.unwrap_or(DEFAULT_SIZE).min(DEFAULT_SIZE));
        let greatest = self.greatest.unwrap_or_else(|| least.max(DEFAULT_SIZE));
        let growth = self.step.map_or(Growth::Factor(self.factor), Growth::Step);
        Sweep { least, greatest, growth }
    }

    /// The user's choices that hold for every size of the sweep.
    ///
    /// # Errors
    /// A root outside the group, an unknown algorithm.
    pub fn choice(&self) -> CommandResult<Choice> {
        names::root_inside(self.root, self.ranks)?;
        let shape =
            Shape::new(self.ranks).and_then(|s| s.rooted(Rank(self.root))).map_err(CommandError::usage)?;
        let named = self.algo.as_deref().map(|name| algorithm(self.collective, name)).transpose()?;
        Ok(Choice {
            collective: self.collective,
            algorithm: named,
            shape,
            dtype: self.dtype,
            op: self.op,
            segment: self.segment.map(|size| size.0),
            window: self.window,
            lanes: 1,
        })
    }

    /// The sweep as nccl-tests prints it, for the lines above the table.
    pub fn summary(&self) -> String {
        let Sweep { least, greatest, growth } = self.sweep();
        let step = match growth {
            Growth::Factor(factor) => format!("{factor}(factor)"),
            Growth::Step(step) => format!("{}(bytes)", step.0),
        };
        format!("minBytes {} maxBytes {} step: {step}", least.0, greatest.0)
    }
}
