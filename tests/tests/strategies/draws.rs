//! Dropout does not depend on how ranks and micro-batches share samples, heads and positions.

use crate::{Alone, counts, distance, gpt, mixture, trained};
use allfold_collectives::World;
use allfold_tests::training::run;
use allfold_trainer::Config;

#[test]
fn every_strategy_drops_what_one_rank_drops() {
    for base in [gpt(), mixture()] {
        let alone = Alone::new(base.with(|c| {
            c.model.dropout = 0.2;
            c.model.attention_dropout = 0.3;
            c.training.max_steps = 3;
        }));
        for row in alone.rows() {
            alone.hold(row, counts(&[4], &[2, 4]), 1e-12);
        }
    }
}

/// Either kind of dropout changes a run, and so does the seed of its draws; the number of micro-batches does not.
#[test]
fn a_share_of_zeros_changes_a_run() {
    let base = gpt().with(|c| {
        c.strategy = "single".into();
        c.training.batch = 24;
        c.training.max_steps = 2;
    });
    let hash = |config: &Config| run(&World::threads(1), config).weights_hash;
    let plain = hash(&base);
    let dropped = hash(&base.clone().with(|c| c.model.dropout = 0.2));
    let attention = hash(&base.clone().with(|c| c.model.attention_dropout = 0.2));
    let reseeded = hash(&base.clone().with(|c| {
        c.model.dropout = 0.2;
        c.seed = 5;
    }));
    assert!(plain != dropped && plain != attention && dropped != attention && dropped != reseeded);
    let micro = base.with(|c| {
        c.model.dropout = 0.2;
        c.model.attention_dropout = 0.2;
    });
    let many = trained(&World::threads(1), &micro.clone().with(|c| c.training.accumulate = 4));
    let far = distance(&trained(&World::threads(1), &micro), &many);
    assert!(far < 1e-12, "micro-batches: {far:e}");
}
