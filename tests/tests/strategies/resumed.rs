//! Runs that are resumed from a checkpoint, by the same strategy or by another one.

use crate::{ROWS, distance, gpt, on, trained};
use allfold_collectives::World;
use allfold_tests::training::run;
use allfold_trainer::Config;

/// Three steps, a checkpoint, and the rest by a run that begins from it.
#[test]
fn a_resumed_run_ends_with_the_bits_of_one_that_was_not_interrupted() {
    for row in &ROWS {
        let Some(data) = (row.data)(2) else { continue };
        let base = Config { optimiser: "adam".into(), lr: 0.01, max_steps: 6, ..gpt() };
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
        let newest = allfold_trainer::checkpoint::newest(directory.path()).unwrap().unwrap();
        let (train, _) = allfold_trainer::data::load(&config).unwrap();
        let network = allfold_trainer::models::build(&config, train.shape, train.classes).unwrap();
        let mut model = allfold_trainer::Model::<f64>::new(network, 0).unwrap();
        allfold_trainer::weights::load(&newest, &mut model).unwrap();
        let got: Vec<Vec<f64>> =
            (0..model.network().params().len()).map(|param| model.param(param).to_vec()).collect();
        let far = distance(&want, &got);
        assert!(far < 1e-12, "{} then {}: {far:e}", first.name, second.name);
    }
}
