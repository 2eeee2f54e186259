//! `allfold verify`: proves that messages match and that results are right, for every algorithm and rank count.

use crate::call::proved;
use allfold_base::on_all_cores;
use allfold_cli::columns;
use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_cli::{memory, names, progress};
use allfold_collectives::registry::{self, Algorithm, Shape};
use allfold_collectives::{Collective, check};
use allfold_report::format::counted;
use allfold_report::records::ProofRecord;
use allfold_report::sizes::{RankCounts, proved_counts};
use std::collections::BTreeSet;

/// Flags of `verify`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold verify                                    every algorithm, for 1 to 64 ranks
  allfold verify all_reduce --algo ring --ranks 8
  allfold verify --ranks 1..16,100 --json proofs.jsonl

Exits with 1 and a counterexample if a proof fails.")]
pub(crate) struct Args {
    /// Verify only this collective
    #[arg(value_name = "COLLECTIVE", value_parser = names::collective)]
    collective: Option<Collective>,
    /// Verify only this algorithm
    #[arg(long, value_name = "NAME")]
    algo: Option<String>,
    /// Rank counts of 1 to 1024, such as 8, 1..64 or 1,2,4..8
    #[arg(long, value_name = "COUNTS", default_value = "1..64", value_parser = proved_counts)]
    ranks: RankCounts,
    #[command(flatten)]
    common: Common,
}

/// Proves the algorithms, prints a row each, and fails with the first counterexample.
pub fn run(args: &Args) -> CommandResult {
    let algorithms = algorithms(args)?;
    let mut output = RunOutput::open(args.common.json.as_deref(), None)?;
    output.check_text()?;
    let proofs = prove(&algorithms, &args.ranks)?;
    for proof in &proofs {
        output.record(proof)?;
    }
    output.say(summary(&proofs, &args.ranks))?;
    for of in by_algorithm(&proofs) {
        counterexamples(of).iter().try_for_each(|line| output.say(line))?;
    }
    let failed: Vec<String> = proofs.iter().filter_map(failure).collect();
    output.say(format!(
        "{} of {} proofs hold: {} at {}",
        proofs.len() - failed.len(),
        proofs.len(),
        counted(algorithms.len(), "algorithm"),
        counted(args.ranks.0.len(), "rank count")
    ))?;
    output.close()?;
    failed.into_iter().next().map_or(Ok(()), |line| Err(CommandError::check(line)))
}

fn algorithms(args: &Args) -> CommandResult<Vec<&'static Algorithm>> {
    match (args.collective, &args.algo) {
        (Some(collective), Some(name)) => {
            Ok(vec![registry::find(collective, name).map_err(CommandError::usage)?])
        }
        (Some(collective), None) => Ok(registry::of(collective).collect()),
        (None, None) => Ok(registry::all().collect()),
        (None, Some(name)) => {
            let found: Vec<_> = registry::all().filter(|algorithm| algorithm.name == name).collect();
            if found.is_empty() {
                let known: BTreeSet<&str> = registry::all().map(|algorithm| algorithm.name).collect();
                let known: Vec<&str> = known.into_iter().collect();
                return Err(CommandError::usage(allfold_sim::suggest::unknown("algorithm", name, &known)));
            }
            Ok(found)
        }
    }
}

/// Proves every algorithm at every rank count that it takes, on all cores; the proofs are in the order of the table.
///
/// # Errors
/// Rank counts that need more memory than there is, or that no algorithm takes.
pub fn prove(algorithms: &[&'static Algorithm], ranks: &RankCounts) -> CommandResult<Vec<ProofRecord>> {
    // The memory of a proof grows with the square of the rank count: every rank has a tree for every chunk, and there are about
    // as many chunks as ranks.
    let most = u64::from(ranks.greatest());
    memory::require(
        most.checked_pow(2).and_then(|n| n.checked_mul(64)),
        &format!("proofs for {most} ranks"),
    )?;
    let every = algorithms.iter().flat_map(|algorithm| ranks.0.iter().map(move |&ranks| (*algorithm, ranks)));
    let taken = every.filter(|(algorithm, ranks)| algorithm.takes(*ranks));
    let mut jobs: Vec<(usize, (&Algorithm, u32))> = taken.enumerate().collect();
    if let ([], [algorithm, ..]) = (&*jobs, algorithms) {
        let shape = Shape::new(ranks.greatest()).map_err(CommandError::usage)?;
        algorithm.build(shape).map_err(CommandError::usage)?;
    }
    // The longest proofs start first, so that no core runs a long proof alone at the end.
    jobs.sort_by_key(|&(place, (_, ranks))| (std::cmp::Reverse(ranks), place));

    let bar = progress::bar(jobs.len() as u64, "proving");
    let work = |&(algorithm, ranks): &(&Algorithm, u32)| {
        let proof = proof(algorithm, ranks);
        if let Ok(proof) = &proof {
            let (over, rounds) = (counted(ranks as usize, "rank"), proof.rounds);
            let ok = if proof.ok { "proved" } else { "refuted" };
            tracing::debug!("{ok} {} by {} over {over}, {rounds} rounds", proof.collective, proof.algorithm);
        }
        bar.inc(1);
        proof
    };
    let mut proofs = Vec::with_capacity(jobs.len());
    on_all_cores(&jobs, work, |proof| -> CommandResult {
        proofs.push(proof?);
        Ok(())
    })?;
    bar.finish_and_clear();
    Ok(proofs)
}

fn proof(algorithm: &Algorithm, ranks: u32) -> CommandResult<ProofRecord> {
    let verdict = proved::verify(algorithm, Shape::new(ranks).map_err(CommandError::usage)?);
    Ok(ProofRecord {
        collective: verdict.collective.name().into(),
        algorithm: verdict.algorithm.into(),
        ranks,
        rounds: verdict.rounds,
        order_class: verdict.order.map(|order| order.to_string()),
        tree_hash: verdict.tree.map(|tree| tree.to_string()),
        ok: verdict.ok(),
        counterexample: verdict.failure.map(|(form, flaw)| format!("{form}: {flaw}")),
    })
}

/// The lines about an algorithm that fails: the counterexamples of its two fewest rank counts, and at how many more it fails.
fn counterexamples(of: &[ProofRecord]) -> Vec<String> {
    const SHOWN: usize = 2;
    let mut lines: Vec<String> = of.iter().filter_map(failure).collect();
    if let Some(more) = lines.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        lines.truncate(SHOWN);
        let ProofRecord { collective, algorithm, .. } = &of[0];
        let more = counted(more, "more rank count");
        lines.push(format!("{collective} by {algorithm} fails at {more}; --json has every counterexample"));
    }
    lines
}

/// The proofs of each algorithm.
fn by_algorithm(proofs: &[ProofRecord]) -> impl Iterator<Item = &[ProofRecord]> {
    proofs.chunk_by(|a, b| (&a.collective, &a.algorithm) == (&b.collective, &b.algorithm))
}

fn failure(proof: &ProofRecord) -> Option<String> {
    let what = proof.counterexample.as_deref()?;
    Some(format!(
        "{} by {} over {}: {what}",
        proof.collective,
        proof.algorithm,
        counted(proof.ranks as usize, "rank")
    ))
}

/// The weakest order class of an algorithm's sums over all rank counts.
fn order(proofs: &[ProofRecord]) -> String {
    let all = [check::Order::Positional, check::Order::Uniform, check::Order::Canonical]
        .map(|order| order.to_string());
    let has = |order: &String| proofs.iter().any(|proof| proof.order_class.as_ref() == Some(order));
    all.into_iter().find(has).unwrap_or_else(|| "-".into())
}

/// The table of proofs: one row per algorithm, with the rounds and the tree of its largest rank count.
fn summary(proofs: &[ProofRecord], ranks: &RankCounts) -> String {
    let ranks_of = |of: &[ProofRecord]| match of.len() == ranks.0.len() {
        true => ranks.to_string(),
        false => format!("{} of {ranks}", of.len()),
    };
    let rows = by_algorithm(proofs).filter_map(|of| Some((of, of.last()?, ranks_of(of))));
    columns::table(
        rows,
        &[
            ("collective", |(_, largest, _)| largest.collective.clone()),
            ("algorithm", |(_, largest, _)| largest.algorithm.clone()),
            ("ranks", |(.., ranks)| ranks.clone()),
            ("rounds", |(_, largest, _)| largest.rounds.to_string()),
            ("order", |(of, ..)| order(of)),
            ("tree", |(_, largest, _)| largest.tree_hash.clone().unwrap_or_else(|| "-".into())),
            ("ok", |(of, ..)| if of.iter().all(|proof| proof.ok) { "yes" } else { "NO" }.into()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_counterexamples_those_of_the_fewest_ranks_are_shown() {
        let proof = |ranks: u32, ok: bool| ProofRecord {
            collective: "all_gather".into(),
            algorithm: "mine".into(),
            ranks,
            rounds: 1,
            order_class: None,
            tree_hash: None,
            ok,
            counterexample: (!ok).then(|| "whole buffers: rank 0 lacks block 1".into()),
        };
        let proofs: Vec<ProofRecord> = (1..=64).map(|ranks| proof(ranks, ranks < 3)).collect();
        let lines = counterexamples(&proofs);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].starts_with("all_gather by mine over 3 ranks: whole buffers"), "{lines:?}");
        assert_eq!(
            lines[2],
            "all_gather by mine fails at 60 more rank counts; --json has every counterexample"
        );
        assert_eq!(counterexamples(&proofs[..3]).len(), 1);
        assert!(counterexamples(&proofs[..2]).is_empty());
    }
}
