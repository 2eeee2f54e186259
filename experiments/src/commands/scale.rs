//! `allfold scale`: scaling curves, of a training run without a subcommand, of something else with one.

mod collective;
mod explain;
mod page;
mod training;
mod validate;
mod workload;

use crate::cli::failure::Outcome;
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
  allfold scale workload resnet50 --topology dgx-a100 --ranks 1..131072 --batch 256 --amp
  allfold scale collective all_reduce --algo ring,double_binary_tree --ranks 1..131072
  allfold scale validate tables/*.json
  allfold scale explain

Without a command, --config says what is trained. Measured: on threads of this machine, for as many ranks as it has cores, or
where the configuration has device = \"cuda\" as it has GPUs. sim: real arithmetic on the virtual clock, for up to --carry
ranks. modeled: shapes, FLOPs and bytes alone, for every rank count. Efficiency is throughput over that of as many single
ranks of the same kind."
)]
pub struct Args {
    #[command(subcommand)]
    kind: Option<Kind>,
    #[command(flatten)]
    training: training::Args,
}

#[derive(Subcommand, Debug)]
enum Kind {
    /// Predict how a large network trains, from its layer table
    Workload(workload::Args),
    /// Time one call of a collective on more and more ranks, by several algorithms
    Collective(collective::Args),
    /// Hold predictions against published tables of training throughput
    Validate(validate::Args),
    /// Explain small published tables: which assumptions make a prediction meet them
    Explain(explain::Args),
}

/// Draws the curve that is asked for.
///
/// # Errors
/// Flags that make no sense together; a point that cannot be made.
pub fn run(args: &Args) -> Outcome {
    match &args.kind {
        Some(Kind::Workload(args)) => workload::run(args),
        Some(Kind::Collective(args)) => collective::run(args),
        Some(Kind::Validate(args)) => validate::run(args),
        Some(Kind::Explain(args)) => explain::run(args),
        None => training::run(&args.training),
    }
}

/// Flags of an older `scale` that are subcommands now, and how each is written.
const RENAMED: [(&str, &str); 4] = [
    ("--workload", "scale workload NAME"),
    ("--collective", "scale collective NAME"),
    ("--against", "scale validate TABLE.."),
    ("--explain", "scale explain NAME"),
];

/// What to say of a command line with a flag that is a subcommand now; `words` is all of it after the program's name.
pub fn renamed(words: &[String]) -> Option<String> {
    let rest = words.split_first().filter(|(first, _)| *first == "scale")?.1;
    let is = |word: &String, flag: &str| word == flag || word.starts_with(&format!("{flag}="));
    let (flag, new) = RENAMED.iter().find(|(flag, _)| rest.iter().any(|word| is(word, flag)))?;
    Some(format!(
        "`scale {flag}` is a command of its own now: write `allfold {new} ..`; --help shows its flags"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_that_became_a_command_is_answered_by_its_new_spelling() {
        let said = |line: &str| renamed(&line.split(' ').map(String::from).collect::<Vec<_>>());
        for (old, new) in [
            ("scale --ranks 1 --workload resnet50", "scale workload NAME"),
            ("scale --workload=resnet50", "scale workload NAME"),
            ("scale --against a.json b.json", "scale validate TABLE.."),
            ("scale --explain all", "scale explain NAME"),
            ("scale --collective all_reduce --algo ring", "scale collective NAME"),
        ] {
            let line = said(old).unwrap();
            assert!(line.contains(new) && !line.contains('\n'), "{old}: {line}");
        }
        assert_eq!(said("scale --config x --ranks 1"), None);
        assert_eq!(said("train --workload x"), None);
    }
}
