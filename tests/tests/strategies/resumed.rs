//! Runs that are resumed from a checkpoint, by the same strategy or by another one.

use crate::{ROWS, distance, gpt, on, trained};
use allfold_collectives::World;
use allfold_tests::training::run;
use allfold_trainer::Config;
use std::path::Path;

/// Three steps, a checkpoint, and the other steps in a run that is resumed from it.
#[test]
fn a_resumed_run_ends_with_the_bits_of_one_that_was_not_interrupted() {
    for row in &ROWS {
        let Some(data) = (row.data)(2) else { continue };
        let base = row.gpt().with(|c| {
            c.optimiser.name = "adam".into();
            c.optimiser.lr = 0.01;
            c.training.max_steps = 6;
        });
        let directory = tempfile::tempdir().unwrap();
        let config = on(row, &base, data).with(|c| {
            c.checkpoint.dir = directory.path().display().to_string();
            c.checkpoint.every = 3;
        });
        let whole = run(&World::threads(2), &config.clone().with(|c| c.checkpoint.every = 0));
        for checkpoint_sharded in [false, true] {
            run(
                &World::threads(2),
                &config.clone().with(|c| {
                    c.training.max_steps = 3;
                    c.checkpoint.sharded = checkpoint_sharded;
                }),
            );
            let resumed = run(
                &World::threads(2),
                &config.clone().with(|c| {
                    c.checkpoint.resume = true;
                    c.training.max_steps = 6;
                }),
            );
            assert_eq!(resumed.weights_hash, whole.weights_hash, "{}, {checkpoint_sharded}", row.name);
            std::fs::remove_dir_all(directory.path()).unwrap();
        }
    }
}

/// The weights of a run's newest checkpoint, by parameter.
fn weights_of(config: &Config) -> Vec<Vec<f64>> {
    let folder = std::path::Path::new(&config.checkpoint.dir);
    let newest = allfold_trainer::checkpoint::newest(folder).unwrap().unwrap();
    let (train, _) = allfold_trainer::data::load(config).unwrap();
    let network = allfold_trainer::models::build(config, train.form()).unwrap();
    let mut model = allfold_trainer::Model::<f64>::new(network, 0).unwrap();
    allfold_trainer::weights::load(&newest, &mut model).unwrap();
    (0..model.network().params().len()).map(|param| model.param(param).to_vec()).collect()
}

/// A checkpoint has the whole weights and the whole optimiser state, so another strategy can continue from it.
#[test]
fn a_run_goes_on_by_another_strategy() {
    let base = gpt().with(|c| {
        c.optimiser.name = "adam".into();
        c.optimiser.lr = 0.01;
        c.training.max_steps = 6;
    });
    let data_strategies = ROWS.iter().filter(|row| (row.data)(2) == Some(2) && row.keys.is_empty());
    let names: Vec<_> = data_strategies.collect();
    let want = trained(&World::threads(2), &on(names[0], &base, 2));
    for (first, second) in names.iter().zip(names.iter().skip(1)) {
        let directory = tempfile::tempdir().unwrap();
        let checkpoint_dir = directory.path().display().to_string();
        let keep = base.clone().with(|c| {
            c.checkpoint.dir = checkpoint_dir;
            c.checkpoint.every = 3;
        });
        run(&World::threads(2), &on(first, &keep, 2).with(|c| c.training.max_steps = 3));
        let config = on(second, &keep, 2).with(|c| c.checkpoint.resume = true);
        run(&World::threads(2), &config);
        let got = weights_of(&config);
        let far = distance(&want, &got);
        assert!(far < 1e-12, "{} then {}: {far:e}", first.name, second.name);
    }
}

/// A run is resumed on another number of ranks by any strategy, if all ranks together take as many samples in a step as before.
#[test]
fn a_run_goes_on_by_another_strategy_on_another_number_of_ranks() {
    let base = gpt().with(|c| {
        c.optimiser.name = "adam".into();
        c.optimiser.lr = 0.01;
        c.optimiser.eps = 1e-3;
        c.training.max_steps = 10;
        c.model.dropout = 0.1;
    });
    let row = |name: &str| ROWS.iter().find(|row| row.name == name).unwrap();
    let want = trained(&World::threads(4), &on(row("ddp"), &base, 4));
    let directory = tempfile::tempdir().unwrap();
    let checkpoint_dir = directory.path().display().to_string();
    let keep = base.with(|c| {
        c.checkpoint.dir = checkpoint_dir;
        c.checkpoint.every = 2;
        c.checkpoint.resume = true;
    });
    let legs = [("ddp", 4), ("zero3", 2), ("tensor", 4), ("1f1b", 3), ("zero1, by pairs", 6)];
    for (leg, (name, ranks)) in legs.into_iter().enumerate() {
        let row = row(name);
        // Checkpoints of parts and whole ones, in turn.
        let (max_steps, checkpoint_sharded) = (2 * leg as u64 + 2, leg % 2 == 0 && leg < 4);
        let keep = keep.clone().with(|c| {
            c.training.max_steps = max_steps;
            c.checkpoint.sharded = checkpoint_sharded;
        });
        let config = on(row, &keep, (row.data)(ranks).unwrap());
        run(&World::threads(ranks), &config);
    }
    let config = on(row("ddp"), &keep, 4);
    let far = distance(&want, &weights_of(&config));
    assert!(far < 1e-12, "{far:e}");
    let other =
        on(row("ddp"), &keep.clone().with(|c| c.training.max_steps = 12), 4).with(|c| c.training.batch = 5);
    let refused = World::threads(4).run(|comm| allfold_trainer::train(&other, &comm, &mut ())).unwrap_err();
    let said = refused.to_string();
    assert!(
        said.contains("6 ranks with batches of 4") && said.contains("as many samples in a step"),
        "{said}"
    );
}

/// Each rank writes what it holds: with `zero3` its part, with `ddp` an equal share. A file that is missing or of another step is
/// named.
#[test]
fn each_rank_writes_its_part_of_a_sharded_checkpoint() {
    let parts = |folder: &Path| -> Vec<u64> {
        let size =
            |rank| std::fs::metadata(folder.join(format!("rank-{rank:05}.safetensors"))).unwrap().len();
        (0..4).map(size).collect()
    };
    for name in ["zero3", "ddp"] {
        let directory = tempfile::tempdir().unwrap();
        let row = ROWS.iter().find(|row| row.name == name).unwrap();
        let keep = gpt().with(|c| {
            c.optimiser.name = "adam".into();
            c.model.width = 64;
            c.training.max_steps = 4;
            c.checkpoint.dir = directory.path().display().to_string();
            c.checkpoint.every = 1;
            c.checkpoint.keep = 2;
            c.checkpoint.sharded = true;
        });
        let config = on(row, &keep, 4);
        run(&World::threads(4), &config);
        let folders =
            ["step-00000003.sharded", "step-00000004.sharded"].map(|name| directory.path().join(name));
        let mut left: Vec<_> =
            directory.path().read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        left.sort();
        assert_eq!(left, folders);
        let sizes = parts(&folders[1]);
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(*most < least + least / 5, "{name}: {sizes:?}");
        let resumed = |what: &str| {
            let config = config.clone().with(|c| {
                c.checkpoint.resume = true;
                c.training.max_steps = 5;
            });
            let refused = World::threads(4).run(|comm| allfold_trainer::train(&config, &comm, &mut ()));
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("rank-00002.safetensors") && said.contains(what), "{name}: {said}");
        };
        let part = |folder: usize| folders[folder].join("rank-00002.safetensors");
        let whole = std::fs::read(part(1)).unwrap();
        std::fs::copy(part(0), part(1)).unwrap();
        resumed("is of step 3 of 4 ranks, and rank 0's part of step 4 of 4");
        std::fs::write(part(1), &whole[..whole.len() - 9]).unwrap();
        resumed("ends at byte");
        std::fs::remove_file(part(1)).unwrap();
        resumed("No such file");
    }
}
