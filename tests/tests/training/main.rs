//! Training over communicators: the same bits on every backend, bucket size and canonical algorithm; equality with
//! one process; evaluation of each test sample once; overlap on the virtual clock, as predicted.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod checkpoints;
mod clock;
mod stopping;

use allfold_collectives::world::WorldKind;
use allfold_collectives::{Collective, Communicator, World};
use allfold_kernels::nn::Float;
use allfold_tests::training::{bits, run, small, switch};
use allfold_trainer::config::{ElementType, LrScheduleName};
use allfold_trainer::engine::StepInput;
use allfold_trainer::models::{self, Cnn, MODELS, cnn, mlp};
use allfold_trainer::strategies::STRATEGIES;
use allfold_trainer::{
    Batch, Config, Dataset, Error, Model, Network, RankTrainer, Result, Sampler, data, evaluate, train,
    train_on,
};

/// All-reduces in which every element has the same reduction tree.
const CANONICAL: [&str; 5] = ["halving_doubling", "recursive_doubling", "direct", "binomial", "star"];

#[test]
fn the_same_bits_on_every_backend_algorithm_and_bucket_size() {
    for ranks in [1, 2, 3, 4, 8] {
        let want = bits(&run(&World::threads(ranks), &small()));
        for algorithm in CANONICAL {
            for world in [World::threads(ranks).any(), World::sim(&switch(ranks)).any()] {
                let world = world.algorithm(Collective::AllReduce, algorithm);
                for (first_bucket_kib, bucket_kib) in [(0, 0), (1, 4), (1024, 25 * 1024)] {
                    let config = small().with(|c| {
                        c.ddp.first_bucket_kib = first_bucket_kib;
                        c.ddp.bucket_kib = bucket_kib;
                    });
                    assert_eq!(
                        bits(&run(&world, &config)),
                        want,
                        "{ranks} ranks, {algorithm}, {bucket_kib} KiB"
                    );
                }
            }
        }
    }
}

/// Runs with synchronised statistics, micro-batches and an optimiser with state have the same bits on every backend, too.
#[test]
fn synchronised_accumulated_and_clipped_runs_have_the_same_bits_everywhere() {
    let config = small().with(|c| {
        c.model.sync_batch_norm = true;
        c.training.accumulate = 2;
        c.optimiser.name = "adamw".into();
        c.lr_schedule.name = LrScheduleName::OneCycle;
        c.lr_schedule.warmup_steps = 1;
        c.optimiser.scale_lr = true;
        c.optimiser.clip_norm = 1.0;
        c.data.crop_padding = 1;
        c.data.flip = true;
    });
    for ranks in [1, 2, 3, 8] {
        let want = bits(&run(&World::threads(ranks), &config));
        for algorithm in CANONICAL {
            let on = World::sim(&switch(ranks)).algorithm(Collective::AllReduce, algorithm);
            let config = config.clone().with(|c| {
                c.ddp.first_bucket_kib = 0;
                c.ddp.bucket_kib = 0;
            });
            assert_eq!(bits(&run(&on, &config)), want, "{ranks} ranks, {algorithm}");
        }
        let plain = run(&World::threads(ranks), &config.clone().with(|c| c.training.accumulate = 1));
        assert_ne!(bits(&plain), want, "{ranks} ranks");
    }
}

/// One step over a batch that ranks share unevenly: (the rank's part of the summed loss, gradients of the summed loss by parameter,
/// running statistics).
fn pass<K: WorldKind>(parts: &[usize], world: &World<K>, train: &Dataset) -> Vec<(f64, Vec<f64>, Vec<f64>)> {
    let config = Config::default().with(|c| c.strategy = "ddp".into());
    let body = |comm: Communicator| -> Result<_> {
        let network = || -> Result<Network<f64>> {
            let parts = Cnn { shape: (1, 8, 8), channels: &[3, 4], batch_norm: true, classes: 10 };
            let mut network = cnn(&parts)?;
            assert_eq!(network.synchronise(), 2);
            Ok(network)
        };
        let mut trainer = RankTrainer::new(&config, network()?, &comm)?;
        trainer.start(&mut Model::new(network()?, 3)?)?;
        let rank = comm.rank().index();
        let from: usize = parts[..rank].iter().sum();
        let mut batch = Batch::default();
        train.gather::<f64>(&(from..from + parts[rank]).collect::<Vec<_>>(), &mut batch)?;
        // The sum of the losses over all samples: ranks with more of them count for more, and ddp divides by the ranks.
        let loss_scale = (parts[rank] * parts.len()) as f64;
        let done = trainer.step(&mut batch, StepInput { loss_scale, ..StepInput::default() }, None)?;
        Ok((done.loss * parts[rank] as f64, trainer.gradients()?, trainer.buffers().to_vec()))
    };
    world.run(body).unwrap()
}

#[test]
fn ranks_with_unequal_batches_normalise_as_one() {
    let (train, _) = data::digits().unwrap();
    let (alone_loss, alone_grads, alone_buffers) = pass(&[12], &World::threads(1), &train).remove(0);
    let close = |a: &[f64], b: &[f64]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-12 * (1.0 + b.abs()))
    };
    for parts in [&[6, 6][..], &[1, 11], &[5, 0, 7], &[1, 2, 4, 5]] {
        let threads = pass(parts, &World::threads(parts.len() as u32), &train);
        let sim = pass(parts, &World::sim(&switch(parts.len() as u32)), &train);
        assert_eq!(threads, sim, "{parts:?}");
        let loss: f64 = threads.iter().map(|(loss, ..)| loss).sum();
        assert!(close(&[loss], &[alone_loss]), "{parts:?}: losses");
        for (rank, (_, grads, buffers)) in threads.iter().enumerate() {
            assert!(close(grads, &alone_grads), "{parts:?}, rank {rank}: gradients");
            assert!(close(buffers, &alone_buffers), "{parts:?}, rank {rank}: running statistics");
        }
    }
}

/// A batch is evaluated without other ranks: of 360 samples, ranks 0 to 2 of 7 have 52, which take two batches, and the others 51.
#[test]
fn a_synchronised_model_is_evaluated_without_communication() {
    let (_, test) = data::digits().unwrap();
    let of = |synchronised: bool| {
        let body = |comm: Communicator| {
            let parts = Cnn { shape: (1, 8, 8), channels: &[3], batch_norm: true, classes: 10 };
            let mut network = cnn::<f64>(&parts)?;
            if synchronised {
                assert_eq!(network.synchronise(), 1);
            }
            evaluate(&mut Model::new(network, 3)?, &test, 51, &comm)
        };
        World::threads(7).run(body).unwrap()
    };
    assert_eq!(of(true), of(false));
}

/// A power of two changes exponents alone, so a scaled run has the bits of a plain run; a run that overflows skips steps on
/// all ranks until it does not overflow.
#[test]
fn a_loss_scale_changes_no_bits_and_an_overflow_skips_the_step() {
    let world = World::threads(3);
    let want = bits(&run(&world, &small()));
    let scaled = small().with(|c| {
        c.precision.loss_scale = 1024.0;
        c.precision.scale_interval = 2;
    });
    assert_eq!(bits(&run(&world, &scaled)), want);
    let overflowing = small().with(|c| {
        c.precision.loss_scale = 1e38;
        c.precision.scale_interval = 1;
        c.precision.scale_backoff = 1e-37;
    });
    let result = run(&world, &overflowing);
    assert_ne!(bits(&result), want);
    // After the skipped step the weights are what they were.
    assert!(result.losses.iter().all(|loss| loss.is_finite()));
    assert_eq!(bits(&run(&World::sim(&switch(3)), &overflowing)), bits(&result));
}

/// The default algorithms are canonical because a ring adds in an order that depends on where in the bucket an element lies. So the test
/// of bucket sizes can fail.
#[test]
fn a_ring_changes_the_weights_with_the_bucket_size() {
    let world = World::threads(4).algorithm(Collective::AllReduce, "ring");
    let with = |bucket_kib| {
        let config = small().with(|c| {
            c.ddp.first_bucket_kib = bucket_kib;
            c.ddp.bucket_kib = bucket_kib;
        });
        run(&world, &config).weights_hash
    };
    assert_eq!(with(0), with(0));
    assert_ne!(with(0), with(1024));
}

/// Trains step by step, so that the weights can be looked at: (losses, parameters).
fn fit<F: Float>(
    network: fn() -> Network<F>,
    per_rank: usize,
    comm: &Communicator,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let strategy = if comm.size() == 1 { "single" } else { "ddp" };
    let config = Config::default().with(|c| {
        c.strategy = strategy.into();
        c.ddp.first_bucket_kib = 1;
        c.ddp.bucket_kib = 1;
        c.optimiser.weight_decay = 1e-4;
    });
    let (train, _) = data::digits()?;
    let train = train.first(240);
    let mut rank = RankTrainer::new(&config, network(), comm)?;
    // Each rank draws other weights; rank 0's are broadcast.
    let mut model = Model::new(network(), u64::from(comm.rank().0))?;
    rank.start(&mut model)?;
    let sampler = Sampler { samples: 240, world: comm.size() as usize, drop_last: false, shuffle: Some(5) };
    let (mut batch, mut losses) = (Batch::default(), Vec::new());
    for epoch in 0..3 {
        for samples in sampler.indices(comm.rank().index(), epoch).chunks(per_rank) {
            train.gather::<F>(samples, &mut batch)?;
            losses.push(rank.step(&mut batch, StepInput { lr: 0.05, ..StepInput::default() }, None)?.loss);
        }
    }
    rank.download(&mut model.params, &mut model.buffers)?;
    comm.all_reduce(&mut losses, allfold_collectives::ReduceOp::Avg)?;
    Ok((losses, model.params.iter().map(|p| p.to_f64()).collect()))
}

#[test]
fn ranks_together_equal_one_process_on_the_whole_batch() {
    let networks: [fn() -> Network<f64>; 2] = [
        || mlp(64, &[24], 10).unwrap(),
        || cnn(&Cnn { shape: (1, 8, 8), channels: &[4, 6], batch_norm: false, classes: 10 }).unwrap(),
    ];
    for network in networks {
        let alone = World::threads(1).run(|comm| fit(network, 24, &comm)).unwrap().remove(0);
        for ranks in [2, 3, 4, 8] {
            let all = World::threads(ranks).run(|comm| fit(network, 24 / ranks as usize, &comm)).unwrap();
            for (losses, params) in all {
                let worst =
                    |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert_eq!(losses.len(), alone.0.len());
                let (loss, param) = (worst(&losses, &alone.0), worst(&params, &alone.1));
                println!("{ranks} ranks: losses to {loss:.1e}, weights to {param:.1e}");
                assert!(loss < 1e-12 && param < 1e-12, "{ranks} ranks: losses {loss:e}, weights {param:e}");
            }
        }
    }
}

/// Every strategy that runs on one rank, every element type, and the models for small pictures: on one rank all strategies give the
/// same bits. The ResNet, which takes nearly all of the time, has a strategy of each kind.
#[test]
fn all_strategies_agree_on_one_rank() {
    assert!(MODELS.iter().any(|(name, _)| *name == "resnet18"));
    const BOTH: [ElementType; 2] = [ElementType::F32, ElementType::F64];
    const OF_EACH_KIND: [&str; 4] = ["single", "ddp", "zero3", "pipeline"];
    for (model, dtypes) in [("mlp", &BOTH[..]), ("cnn", &BOTH), ("resnet18", &BOTH[..1])] {
        for &dtype in dtypes {
            // Two steps and a test of 12 samples: a test of all 360 would take most of the time.
            let with = |strategy: &str| {
                let (model, strategy) = (model.to_string(), strategy.into());
                let config = small().with(|c| {
                    c.model.name = model;
                    c.precision.dtype = dtype;
                    c.strategy = strategy;
                    c.training.max_steps = 2;
                    c.data.validation = 12;
                });
                bits(&run(&World::threads(1), &config))
            };
            // A server and a worker are two ranks.
            let names = STRATEGIES.iter().map(|(strategy, _)| *strategy);
            let names = names.filter(|name| *name != "parameter_server");
            let names = names.filter(|name| model != "resnet18" || OF_EACH_KIND.contains(name));
            let all: Vec<_> = names.map(|strategy| (strategy, with(strategy))).collect();
            for (strategy, bits) in &all {
                assert_eq!(bits, &all[0].1, "{model}, {dtype}, {strategy}");
            }
        }
    }
}

#[test]
fn evaluation_counts_every_test_sample_once() {
    let (_, test) = data::digits().unwrap();
    let on = |ranks: u32| {
        let network = || mlp::<f64>(64, &[16], 10).unwrap();
        let body = |comm: Communicator| evaluate(&mut Model::new(network(), 3)?, &test, 32, &comm);
        World::threads(ranks).run(body).unwrap()
    };
    let alone = on(1)[0];
    assert_eq!(alone.labels, 360);
    // 360 samples: 7 ranks have 52 or 51 each; padding would count 364.
    for ranks in [2, 3, 7, 8] {
        for result in on(ranks) {
            assert_eq!((result.labels, result.correct), (alone.labels, alone.correct));
            assert!((result.loss - alone.loss).abs() < 1e-12);
        }
    }
}

/// A text has a label at each position: its accuracy is a share of the positions, and its loss the mean that is trained on.
#[test]
fn evaluation_of_a_text_counts_positions() {
    let config = small().with(|c| {
        c.model.name = "gpt".into();
        c.data.name = "synthetic".into();
        c.data.synthetic_samples = 70;
        c.data.synthetic_classes = 11;
        c.data.positions = 12;
        c.model.layers = 1;
        c.model.width = 8;
        c.model.heads = 2;
    });
    let (train, test) = data::load(&config).unwrap();
    let mut batch = Batch::default();
    test.gather::<f64>(&(0..test.len()).collect::<Vec<_>>(), &mut batch).unwrap();
    let network = || models::build::<f64>(&config, train.form());
    let model = || Model::new(network()?, 3);
    let whole = |comm: Communicator| -> Result<f64> {
        let mut rank = RankTrainer::new(&config, network()?, &comm)?;
        rank.start(&mut model()?)?;
        Ok(rank.step(&mut batch.clone(), StepInput::default(), None)?.loss)
    };
    let loss = World::threads(1).run(whole).unwrap()[0];
    for ranks in [1, 2, 3] {
        for result in World::threads(ranks).run(|comm| evaluate(&mut model()?, &test, 2, &comm)).unwrap() {
            assert_eq!(result.labels, 7 * 12, "{ranks} ranks");
            assert!(result.correct <= result.labels && (result.loss - loss).abs() < 1e-12, "{result:?}");
        }
    }
}

#[test]
fn the_network_learns_the_digits() {
    let config = Config::default().with(|c| c.training.epochs = 3);
    let result = run(&World::threads(2), &config);
    assert!(result.test.accuracy() > 0.92, "accuracy {}", result.test.accuracy());
    assert_eq!(result.losses.len(), 3 * 1437usize.div_ceil(2).div_ceil(16));
}

#[test]
fn ranks_with_different_models_are_refused_by_name() {
    let body = |comm: Communicator| {
        let hidden = if comm.rank().0 == 2 { 17 } else { 16 };
        RankTrainer::new(&Config::default(), mlp::<f32>(64, &[hidden], 10)?, &comm).map(drop)
    };
    let error = World::threads(4).run(body).unwrap_err();
    assert!(matches!(error, Error::Replicas(_)));
    assert!(error.to_string().contains("rank 2 has 4 parameters of 1285 elements"), "{error}");
}

/// Every rank draws its share of the same samples, so a label or a value that differs on one rank would train silently wrong.
#[test]
fn ranks_with_different_data_are_refused_by_name() {
    let (train, test) = data::digits().unwrap();
    let changed = |change: &dyn Fn(&mut Dataset)| {
        let mut other = train.clone();
        change(&mut other);
        other
    };
    let label = changed(&|set| set.labels[700] = (set.labels[700] + 1) % 10);
    let shorter = changed(&|set| *set = set.clone().first(1000));
    for other in [&label, &shorter] {
        let body = |comm: Communicator| {
            let mine = if comm.rank().0 == 2 { other } else { &train };
            train_on(&small(), mine, &test, &comm, &mut ())
        };
        let error = World::threads(4).run(body).unwrap_err();
        assert!(matches!(error, Error::Data(_)) && error.to_string().contains("rank 2 has "), "{error}");
    }
}

#[test]
fn single_on_several_ranks_is_refused() {
    let config = small().with(|c| c.strategy = "single".into());
    let error = World::threads(2).run(|comm| train(&config, &comm, &mut ())).unwrap_err();
    assert!(error.to_string().starts_with("strategy `single` trains on 1 rank and there are 2"), "{error}");
}
