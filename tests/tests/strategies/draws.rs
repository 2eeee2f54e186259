//! Dropout does not depend on how ranks and micro-batches share samples, heads and positions.

use crate::{Alone, counts, distance, gpt, mixture, trained};
use allfold_collectives::World;
use allfold_tests::training::run;
use allfold_trainer::Config;

#[test]
fn every_strategy_drops_what_one_rank_drops() {
    for base in [gpt(), mixture()] {
        let alone = Alone::new(Config { dropout: 0.2, attention_dropout: 0.3, max_steps: 3, ..base });
        for row in alone.rows() {
            alone.hold(row, counts(&[4], &[2, 4]), 1e-12);
        }
    }
}

/// Either kind of dropout changes a run, and so does the seed of its draws; the number of micro-batches does not.
#[test]
fn a_share_of_zeros_changes_a_run() {
    let base = Config { strategy: "single".into(), batch: 24, max_steps: 2, ..gpt() };
    let hash = |config: &Config| run(&World::threads(1), config).weights_hash;
    let plain = hash(&base);
    let dropped = hash(&Config { dropout: 0.2, ..base.clone() });
    let attention = hash(&Config { attention_dropout: 0.2, ..base.clone() });
    let reseeded = hash(&Config { dropout: 0.2, seed: 5, ..base.clone() });
    assert!(plain != dropped && plain != attention && dropped != attention && dropped != reseeded);
    let micro = Config { dropout: 0.2, attention_dropout: 0.2, ..base };
    let many = trained(&World::threads(1), &Config { accumulate: 4, ..micro.clone() });
    let far = distance(&trained(&World::threads(1), &micro), &many);
    assert!(far < 1e-12, "micro-batches: {far:e}");
}
