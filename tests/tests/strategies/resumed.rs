//! Runs that are resumed from a checkpoint, by the same strategy or by another one.

use crate::{ROWS, distance, gpt, on, trained};
use allfold_collectives::World;
use allfold_tests::training::run;
use allfold_trainer::Config;

/// Three steps, a checkpoint, and the other steps in a run that is resumed from it.
#[test]
fn a_resumed_run_ends_with_the_bits_of_one_that_was_not_interrupted() {
    for row in &ROWS {
        let Some(data) = (row.data)(2) else { continue };
        let base = Config { optimiser: "adam".into(), lr: 0.01, max_steps: 6, ..row.gpt() };
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            checkpoint_dir: directory.path().display().to_string(),
            checkpoint_every: 3,
            ..on(row, &base, data)
        };
        let whole = run(&World::threads(2), &Config { checkpoint_every: 0, ..config.clone() });
        run(&World::threads(2), &Config { max_steps: 3, ..config.clone() });
        let resumed = run(&World::threads(2), &Config { resume: true, ..config });
        assert_eq!(resumed.weights_hash, whole.weights_hash, "{}", row.name);
    }
}

/// The weights of a run's newest checkpoint, by parameter.
fn weights_of(config: &Config) -> Vec<Vec<f64>> {
    let folder = std::path::Path::new(&config.checkpoint_dir);
    let newest = allfold_trainer::checkpoint::newest(folder).unwrap().unwrap();
    let (train, _) = allfold_trainer::data::load(config).unwrap();
    let network = allfold_trainer::models::build(config, train.shape, train.classes).unwrap();
    let mut model = allfold_trainer::Model::<f64>::new(network, 0).unwrap();
    allfold_trainer::weights::load(&newest, &mut model).unwrap();
    (0..model.network().params().len()).map(|param| model.param(param).to_vec()).collect()
}

/// A checkpoint has the whole weights and the whole optimiser state, so another strategy can go on from it.
#[test]
fn a_run_goes_on_by_another_strategy() {
    let base = Config { optimiser: "adam".into(), lr: 0.01, max_steps: 6, ..gpt() };
    let data_strategies = ROWS.iter().filter(|row| (row.data)(2) == Some(2) && row.keys.is_empty());
    let names: Vec<_> = data_strategies.collect();
    let want = trained(&World::threads(2), &on(names[0], &base, 2));
    for (first, second) in names.iter().zip(names.iter().skip(1)) {
        let directory = tempfile::tempdir().unwrap();
        let checkpoint_dir = directory.path().display().to_string();
        let keep = Config { checkpoint_dir, checkpoint_every: 3, ..base.clone() };
        run(&World::threads(2), &Config { max_steps: 3, ..on(first, &keep, 2) });
        let config = Config { resume: true, ..on(second, &keep, 2) };
        run(&World::threads(2), &config);
        let got = weights_of(&config);
        let far = distance(&want, &got);
        assert!(far < 1e-12, "{} then {}: {far:e}", first.name, second.name);
    }
}

/// A run is resumed on another number of ranks by any strategy, if all ranks together take as many samples in a step as before.
#[test]
fn a_run_goes_on_by_another_strategy_on_another_number_of_ranks() {
    let base = Config { optimiser: "adam".into(), lr: 0.01, eps: 1e-3, max_steps: 10, dropout: 0.1, ..gpt() };
    let row = |name: &str| ROWS.iter().find(|row| row.name == name).unwrap();
    let want = trained(&World::threads(4), &on(row("ddp"), &base, 4));
    let directory = tempfile::tempdir().unwrap();
    let checkpoint_dir = directory.path().display().to_string();
    let keep = Config { checkpoint_dir, checkpoint_every: 2, resume: true, ..base };
    let legs = [("ddp", 4), ("zero3", 2), ("tensor", 4), ("1f1b", 3), ("zero1, by pairs", 6)];
    for (leg, (name, ranks)) in legs.into_iter().enumerate() {
        let row = row(name);
        let config =
            on(row, &Config { max_steps: 2 * leg as u64 + 2, ..keep.clone() }, (row.data)(ranks).unwrap());
        run(&World::threads(ranks), &config);
    }
    let config = on(row("ddp"), &keep, 4);
    let far = distance(&want, &weights_of(&config));
    assert!(far < 1e-12, "{far:e}");
    let other = Config { batch: 5, ..on(row("ddp"), &Config { max_steps: 12, ..keep.clone() }, 4) };
    let refused = World::threads(4).run(|comm| allfold_trainer::train(&other, &comm, &mut ())).unwrap_err();
    let said = refused.to_string();
    assert!(
        said.contains("6 ranks with batches of 4") && said.contains("as many samples in a step"),
        "{said}"
    );
}
