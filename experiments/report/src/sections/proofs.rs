//! The section of proofs: what was proved, for every algorithm and rank count.

use super::part::{Part, commands, distinct, fact, head};
use crate::format;
use crate::page::{Question, ReportTable, Section};
use crate::plots::DrawError;
use crate::records::{ProofRecord, Records};
use crate::sizes::RankCounts;

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let all = records.stamped::<ProofRecord>();
    if all.is_empty() {
        return Ok(None);
    }
    let algorithms = distinct(all.iter().map(|(p, _)| (p.collective.clone(), p.algorithm.clone())));
    let rows = algorithms.iter().map(|(collective, algorithm)| {
        let of: Vec<&ProofRecord> = all
            .iter()
            .map(|(proof, _)| proof)
            .filter(|p| p.collective == *collective && p.algorithm == *algorithm)
            .collect();
        row(&of)
    });
    let failed = all.iter().filter(|(proof, _)| !proof.ok).count();
    let counts = distinct(all.iter().map(|(proof, _)| proof.ranks)).len();
    let table = ReportTable {
        caption: "Every algorithm, at its largest rank count".into(),
        head: head(&["collective", "algorithm", "ranks", "rounds", "order class", "tree", "proved"]),
        rows: rows.collect(),
        collapsed: false,
    };
    let value = match failed {
        0 => format!("{} algorithms proved", algorithms.len()),
        failed => format!("{failed} proofs failed"),
    };
    let proved = format!(
        "at {counts} rank counts: every send has its receive, every result is the one that the collective defines"
    );
    let answer = (failed == 0).then(|| format!("{} algorithms are proved {proved}", algorithms.len()));
    let facts = vec![fact(Question::Trust, value, proved, Some(failed == 0))];
    let text = vec![
        "A schedule says what each rank sends and receives in each round. Two checkers read it: one matches every send \
         with exactly one receive of equal length, the other follows each chunk's reduction tree symbolically and \
         compares it with what the collective promises."
            .into(),
        "The order class says on what the bits of a result depend. Canonical: on the inputs and the number of ranks \
         alone, the same for every canonical algorithm. Uniform: the same tree for every element, but another one. \
         Positional: also on where in the buffer an element lies."
            .into(),
    ];
    let section = Section {
        id: "proofs",
        title: "Proofs".into(),
        text,
        plots: Vec::new(),
        tables: vec![table],
        commands: commands(all.iter().map(|(_, stamp)| stamp)),
        folded: failed == 0,
    };
    Ok(Some(Part { answer, facts, limits: Vec::new(), section }))
}

/// The row of one algorithm, over all its rank counts.
fn row(proofs: &[&ProofRecord]) -> Vec<String> {
    let Some(largest) = proofs.iter().max_by_key(|proof| proof.ranks) else { return Vec::new() };
    let mut ranks: Vec<u32> = proofs.iter().map(|proof| proof.ranks).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let verdict = match proofs.iter().find(|proof| !proof.ok) {
        None => "yes".into(),
        Some(bad) => {
            format!(
                "NO, at {} ranks: {}",
                bad.ranks,
                bad.counterexample.as_deref().unwrap_or("no counterexample")
            )
        }
    };
    vec![
        largest.collective.clone(),
        largest.algorithm.clone(),
        RankCounts(ranks).to_string(),
        largest.rounds.to_string(),
        largest.order_class.clone().unwrap_or_default(),
        format::short(largest.tree_hash.as_deref().unwrap_or_default()),
        verdict,
    ]
}
