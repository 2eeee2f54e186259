//! `allfold show`: draws one algorithm, with its cost, order class and identity.

use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_cli::{memory, names};
use allfold_collectives::registry::{self, Shape};
use allfold_collectives::schedule::{Schedule, Segments};
use allfold_collectives::{Collective, Rank, check, render};
use allfold_report::records::Shown;
use allfold_report::sizes::proved_count;
use std::sync::Arc;

/// Flags of `show`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold show all_reduce --algo ring --ranks 4
  allfold show broadcast --algo chain --ranks 4 --root 2 --segments 3")]
pub(crate) struct Args {
    /// Which collective: all_reduce, broadcast, all_gather, ...
    #[arg(value_name = "COLLECTIVE", value_parser = names::collective)]
    collective: Collective,
    /// Algorithm; an unknown name lists the known ones
    #[arg(long, value_name = "NAME")]
    algo: String,
    /// Number of ranks, 1 to 1024
    #[arg(long, value_name = "N", value_parser = proved_count)]
    ranks: u32,
    /// Root rank of broadcast, reduce, gather and scatter: 0 to --ranks less 1
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: u32,
    /// Cut every chunk into this many pieces, 1 to 65536
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    segments: u32,
    #[command(flatten)]
    common: Common,
}

/// Proves the schedule and draws it.
pub fn run(args: &Args) -> CommandResult {
    let algorithm = registry::find(args.collective, &args.algo).map_err(CommandError::usage)?;
    names::root_inside(args.root, args.ranks)?;
    let root = Rank(args.root);
    let shape = Shape::new(args.ranks).and_then(|shape| shape.rooted(root)).map_err(CommandError::usage)?;
    let pieces =
        u64::from(args.ranks).checked_pow(2).and_then(|n| n.checked_mul(64 * u64::from(args.segments)));
    let fewer = if args.segments > 1 { "take fewer ranks or fewer --segments" } else { "take fewer ranks" };
    memory::require_or(pieces, &format!("the proof and picture of {} ranks", args.ranks), fewer)?;
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;

    let whole = algorithm.build(shape).map_err(CommandError::check)?;
    let schedule: Arc<dyn Schedule> =
        if args.segments > 1 { Arc::new(Segments::new(whole, args.segments)) } else { whole };
    let proof = check::check(&*schedule, args.collective, root).map_err(CommandError::check)?;
    let picture = render::rounds(&*schedule);
    output.say(format!("{} by {}: {}\n", args.collective, algorithm.name, algorithm.about))?;
    output.say(&picture)?;
    output.say(render::cost(&*schedule))?;
    output.say(render::order(&proof))?;
    output.record(&Shown {
        collective: args.collective.name().into(),
        algorithm: algorithm.name.into(),
        ranks: args.ranks,
        rounds: schedule.rounds(),
        order_class: proof.order().map(|order| order.to_string()),
        tree_hash: proof.hash().map(|hash| hash.to_string()),
        picture: picture.lines().map(String::from).collect(),
    })?;
    output.close()
}
