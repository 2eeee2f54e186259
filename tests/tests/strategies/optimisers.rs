//! Every strategy gives the optimiser the same values as one rank does: gradients of one step, LARS's norms of whole parameters,
//! Adam's moments, and skipped steps under a loss scale.

use crate::{Alone, ROWS, Row, counts, digits, distance, gpt, mixture, on, trained};
use allfold_collectives::World;
use allfold_trainer::config::{AutocastType, ElementType};
use allfold_trainer::{Config, Model, checkpoint, data, models, optim};

/// The rows whose strategy takes the model of a base configuration.
fn rows(base: &Config) -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(move |row| row.takes(base))
}

/// The gradients of the first step, as the weights after plain SGD with a rate so large that the initial weights do not matter.
fn gradients(ranks: u32, config: &Config) -> Vec<Vec<f64>> {
    const RATE: f64 = (1u64 << 20) as f64;
    let config = config.clone().with(|c| {
        c.training.max_steps = 1;
        c.optimiser.lr = RATE;
        c.optimiser.momentum = 0.0;
    });
    trained(&World::threads(ranks), &config)
}

#[test]
fn the_gradients_of_one_step_are_those_of_one_rank() {
    for base in [digits(), gpt(), mixture()] {
        let whole = base.clone().with(|c| {
            c.strategy = "single".into();
            c.training.batch = crate::SAMPLES;
        });
        let want = gradients(1, &whole);
        for row in rows(&base) {
            for ranks in [2, 4] {
                let Some(data) = (row.data)(ranks) else { continue };
                let far = distance(&want, &gradients(ranks, &on(row, &base, data)));
                assert!(far < 1e-12, "{}, {ranks} ranks, {} experts: {far:e}", row.name, base.model.experts);
            }
        }
    }
}

/// The rate of a parameter follows from norms over all of it, wherever its elements are.
#[test]
fn lars_steps_by_the_norms_of_whole_parameters() {
    for base in [gpt(), mixture()] {
        let lars = base.with(|c| {
            c.optimiser.name = "lars".into();
            c.optimiser.lr = 4.0;
            c.optimiser.trust = 0.02;
            c.optimiser.weight_decay = 0.01;
        });
        let alone = Alone::new(lars.with(|c| c.training.max_steps = 4));
        for row in alone.rows() {
            alone.hold(row, counts(&[4], &[2, 4]), 1e-12);
        }
    }
}

/// Adam divides by the root of mean squares: with a large epsilon it does not magnify the rounding of small gradients.
#[test]
fn adam_is_fed_equal_gradients() {
    let adam = gpt().with(|c| {
        c.optimiser.name = "adam".into();
        c.optimiser.lr = 0.01;
        c.optimiser.eps = 1e-3;
        c.optimiser.weight_decay = 0.01;
    });
    let alone = Alone::new(adam.with(|c| c.training.max_steps = 5));
    for row in alone.rows() {
        alone.hold(row, counts(&[4], &[2, 4]), 1e-11);
    }
}

/// Numbers of ranks that no axis of size 2 divides.
#[test]
fn five_and_seven_ranks_train_as_one() {
    const SAMPLES: usize = 35;
    let whole = digits().with(|c| {
        c.strategy = "single".into();
        c.training.batch = SAMPLES;
        c.data.train_samples = 350;
    });
    let alone = trained(&World::threads(1), &whole);
    for row in rows(&whole) {
        for ranks in [5, 7] {
            let Some(data) = (row.data)(ranks).filter(|data| SAMPLES.is_multiple_of(*data as usize)) else {
                continue;
            };
            let config = on(row, &whole, data).with(|c| c.training.batch = SAMPLES / data as usize);
            let far = distance(&alone, &trained(&World::threads(ranks), &config));
            assert!(far < 1e-12, "{}, {ranks} ranks: {far:e}", row.name);
        }
    }
}

/// The state after a run in narrow numbers: the loss scale, the steps since its last change, the number of steps not skipped, the
/// losses, and the weights.
fn scaled(ranks: u32, config: &Config) -> (f32, u64, u64, Vec<f64>, Vec<Vec<f64>>) {
    let directory = tempfile::tempdir().unwrap();
    let checkpoint_dir = directory.path().display().to_string();
    let config = config.clone().with(|c| {
        c.checkpoint.dir = checkpoint_dir;
        c.checkpoint.every = config.training.max_steps;
    });
    let losses = allfold_tests::training::run(&World::threads(ranks), &config).losses;
    let path = checkpoint::newest(directory.path()).unwrap().unwrap();
    let (train, _) = data::load(&config).unwrap();
    let network = models::build(&config, train.form()).unwrap();
    let mut optimiser = optim::build(&config, network.params()).unwrap();
    let mut model = Model::<f32>::new(network, 0).unwrap();
    let (optimiser, own) = (&mut *optimiser, &mut Vec::new());
    let into = checkpoint::Restored {
        config: &config,
        data: &checkpoint::TrainedOn::of(&config, &train),
        ranks,
        model: &mut model,
        optimiser,
        own,
    };
    let (progress, _) = checkpoint::load(&path, into).unwrap();
    let values = |param: usize| model.param(param).iter().map(|&x| f64::from(x)).collect();
    let weights = (0..model.network().params().len()).map(values).collect();
    (progress.loss_scale, progress.good, progress.optimiser_steps, losses, weights)
}

/// A loss scale that overflows in the first step, and then falls so far that no later step overflows, whether a rank has all
/// samples or a quarter of them: every rank skips the first step. Without a scale bf16 skips none.
#[test]
fn overflows_skip_the_same_steps_by_every_strategy() {
    let f16 = gpt().with(|c| {
        c.precision.dtype = ElementType::F32;
        c.precision.amp = AutocastType::F16;
        c.precision.loss_scale = (1u64 << 26) as f64;
        c.precision.scale_backoff = 1.0 / (1u64 << 14) as f64;
        c.precision.scale_interval = 3;
        c.training.max_steps = 5;
    });
    let bf16 = f16.clone().with(|c| {
        c.precision.amp = AutocastType::Bf16;
        c.precision.loss_scale = 0.0;
    });
    for (base, skipped, within) in [(f16, 1, 4e-3), (bf16, 0, 3e-2)] {
        let whole = base.clone().with(|c| {
            c.strategy = "single".into();
            c.training.batch = crate::SAMPLES;
        });
        let (scale, good, steps, losses, weights) = scaled(1, &whole);
        assert_eq!(steps, base.training.max_steps - skipped);
        assert!(skipped == 0 || scale == 8_192.0);
        for (row, ranks) in rows(&base).flat_map(|row| [(row, 2), (row, 4)]) {
            let Some(data) = (row.data)(ranks) else { continue };
            let (own_scale, own_good, own_steps, own, own_weights) = scaled(ranks, &on(row, &base, data));
            let what = format!("{}, {ranks} ranks, {}", row.name, base.precision.amp);
            assert_eq!((own_scale, own_good, own_steps), (scale, good, steps), "{what}");
            let far = losses.iter().zip(&own).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(far < within, "{what}: losses {far} apart");
            let far = distance(&weights, &own_weights);
            assert!(far < within, "{what}: weights {far} apart");
        }
    }
}
