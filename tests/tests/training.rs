//! Training over communicators: the same bits on every backend, bucket size and canonical algorithm; equality with
//! one process; honest evaluation; overlap on the virtual clock, as predicted.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_collectives::world::Kind;
use allfold_collectives::{Collective, Communicator, Plan, World};
use allfold_kernels::nn::Float;
use allfold_sim::{Costs, Device, Sharing, Topology};
use allfold_tests::training::{bits, run, small, switch};
use allfold_trainer::modeled::{Machine, Prediction, predict};
use allfold_trainer::models::{self, Cnn, MODELS, cnn, mlp};
use allfold_trainer::strategies::{STRATEGIES, build};
use allfold_trainer::timing::{Breakdown, communication};
use allfold_trainer::{
    Batch, Config, Dataset, EpochReport, Error, Model, Network, Objective, Observer, Optimiser, Result,
    Sampler, Sgd, StepReport, TrainResult, checkpoint, data, evaluate, train, train_on,
};

/// All-reduces in which every element has the same tree, whatever its place.
const CANONICAL: [&str; 5] = ["halving_doubling", "recursive_doubling", "direct", "binomial", "star"];

#[test]
fn the_same_bits_on_every_backend_algorithm_and_bucket_size() {
    for ranks in [1, 2, 3, 4, 8] {
        let want = bits(&run(&World::threads(ranks), &small()));
        for algorithm in CANONICAL {
            for world in [World::threads(ranks).any(), World::sim(&switch(ranks)).any()] {
                let world = world.algorithm(Collective::AllReduce, algorithm);
                for (first_bucket_kib, bucket_kib) in [(0, 0), (1, 4), (1024, 25 * 1024)] {
                    let config = Config { first_bucket_kib, bucket_kib, ..small() };
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

/// The same with all that a run can have: the statistics, the micro-batches and the optimiser add nothing that depends
/// on where it runs.
#[test]
fn synchronised_accumulated_and_clipped_runs_have_the_same_bits_everywhere() {
    let config = Config {
        sync_batch_norm: true,
        accumulate: 2,
        optimiser: "adamw".into(),
        lr_schedule: "one_cycle".into(),
        warmup_steps: 1,
        scale_lr: true,
        clip_norm: 1.0,
        crop_padding: 1,
        flip: true,
        ..small()
    };
    for ranks in [1, 2, 3, 8] {
        let want = bits(&run(&World::threads(ranks), &config));
        for algorithm in CANONICAL {
            let on = World::sim(&switch(ranks)).algorithm(Collective::AllReduce, algorithm);
            let config = Config { first_bucket_kib: 0, bucket_kib: 0, ..config.clone() };
            assert_eq!(bits(&run(&on, &config)), want, "{ranks} ranks, {algorithm}");
        }
        let plain = run(&World::threads(ranks), &Config { accumulate: 1, ..config.clone() });
        assert_ne!(bits(&plain), want, "{ranks} ranks");
    }
}

/// One forward and backward pass over a batch that ranks share unevenly: (logits, gradients of the summed loss by
/// parameter, running statistics).
fn pass<K: Kind>(parts: &[usize], world: &World<K>, train: &Dataset) -> Vec<(Vec<f64>, Vec<f64>, Vec<f64>)> {
    let body = |comm: Communicator| -> Result<_> {
        let mut network = cnn(&Cnn { shape: (1, 8, 8), channels: &[3, 4], batch_norm: true, classes: 10 })?;
        assert_eq!(network.synchronise(), 2);
        let config = Config { strategy: "ddp".into(), ..Config::default() };
        let mut strategy = build(&config, &network, &comm)?;
        let mut model = Model::<f64>::new(network, 3)?;
        strategy.start(&mut model)?;
        let rank = comm.rank().index();
        let from: usize = parts[..rank].iter().sum();
        let mut batch = Batch::default();
        train.gather::<f64>(&(from..from + parts[rank]).collect::<Vec<_>>(), &mut batch)?;
        strategy.forward(&mut model, &batch.x)?;
        let logits = model.logits().to_vec();
        // The sum of the losses over all samples: ranks with more of them count for more, and ddp divides by the ranks.
        let scale = (parts[rank] * parts.len()) as f64;
        strategy.backward(&mut model, Objective { labels: &batch.labels, scale, more: false })?;
        Ok((logits, model.grads.into_vec(), model.buffers))
    };
    world.run(body).unwrap()
}

#[test]
fn ranks_with_unequal_batches_normalise_as_one() {
    let (train, _) = data::digits().unwrap();
    let (alone_logits, alone_grads, alone_buffers) = pass(&[12], &World::threads(1), &train).remove(0);
    let close = |a: &[f64], b: &[f64]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-12 * (1.0 + b.abs()))
    };
    for parts in [&[6, 6][..], &[1, 11], &[5, 0, 7], &[1, 2, 4, 5]] {
        let threads = pass(parts, &World::threads(parts.len() as u32), &train);
        let sim = pass(parts, &World::sim(&switch(parts.len() as u32)), &train);
        assert_eq!(threads, sim, "{parts:?}");
        let logits: Vec<f64> = threads.iter().flat_map(|(logits, ..)| logits.clone()).collect();
        assert!(close(&logits, &alone_logits), "{parts:?}: logits");
        for (rank, (_, grads, buffers)) in threads.iter().enumerate() {
            assert!(close(grads, &alone_grads), "{parts:?}, rank {rank}: gradients");
            assert!(close(buffers, &alone_buffers), "{parts:?}, rank {rank}: running statistics");
        }
    }
}

/// Evaluation asks no other rank: of 360 samples, ranks 0 to 2 of 7 have one batch of 51 more than the others.
#[test]
fn a_synchronised_model_is_evaluated_without_communication() {
    let (_, test) = data::digits().unwrap();
    let of = |synchronised: bool| {
        let body = |comm: Communicator| {
            let parts = Cnn { shape: (1, 8, 8), channels: &[3], batch_norm: true, classes: 10 };
            let mut model = Model::<f64>::new(cnn(&parts)?, 3)?;
            if synchronised {
                assert_eq!(model.synchronise(), 1);
            }
            evaluate(&mut model, &test, 51, &comm)
        };
        World::threads(7).run(body).unwrap()
    };
    assert_eq!(of(true), of(false));
}

/// A power of two changes exponents alone, so a scaled run has the bits of a plain one; one that overflows skips steps
/// until it does not, on all ranks.
#[test]
fn a_loss_scale_changes_no_bits_and_an_overflow_skips_the_step() {
    let world = World::threads(3);
    let want = bits(&run(&world, &small()));
    let scaled = Config { loss_scale: 1024.0, scale_interval: 2, ..small() };
    assert_eq!(bits(&run(&world, &scaled)), want);
    let overflowing = Config { loss_scale: 1e38, scale_interval: 1, scale_backoff: 1e-37, ..small() };
    let result = run(&world, &overflowing);
    assert_ne!(bits(&result), want);
    // After the skipped step the weights are what they were.
    assert!(result.losses.iter().all(|loss| loss.is_finite()));
    assert_eq!(bits(&run(&World::sim(&switch(3)), &overflowing)), bits(&result));
}

/// Six steps in two epochs; a checkpoint after each of them. Going on from any one gives the bits of the whole.
#[test]
fn a_resumed_run_has_the_bits_of_one_that_never_stopped() {
    for optimiser in ["sgd", "adamw"] {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            optimiser: optimiser.into(),
            train_samples: 24,
            crop_padding: 1,
            flip: true,
            loss_scale: 8.0,
            scale_interval: 4,
            checkpoint_dir: directory.path().display().to_string(),
            checkpoint_every: 1,
            checkpoint_keep: 5,
            ..small()
        };
        let want = run(&World::threads(2), &config);
        let mut kept: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        kept.sort();
        assert_eq!((want.losses.len(), kept.len()), (6, 5));
        assert!(kept[4].ends_with("step-00000006.safetensors"));
        let resumed =
            Config { resume: true, checkpoint_every: 0, bucket_kib: 4, workers: 2, ..config.clone() };
        for newest in kept.iter().rev() {
            for world in [World::threads(2).any(), World::sim(&switch(2)).any()] {
                let got = run(&world, &resumed);
                assert_eq!((bits(&got), got.test), (bits(&want), want.test), "{}", newest.display());
            }
            std::fs::remove_file(newest).unwrap();
        }
        // Nothing left to resume from: from the beginning.
        assert_eq!(bits(&run(&World::threads(2), &resumed)), bits(&want));
    }
}

#[test]
fn checkpoints_that_do_not_fit_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        checkpoint_dir: directory.path().display().to_string(),
        checkpoint_every: 6,
        resume: true,
        ..small()
    };
    run(&World::threads(2), &config);
    let path = directory.path().join("step-00000006.safetensors");
    let refused = |ranks, config: &Config| {
        let world = World::threads(ranks);
        let each = world.run_each(|comm| train(config, &comm, &mut ())).unwrap().ranks;
        let errors: Vec<String> = each.into_iter().map(|rank| rank.unwrap_err().to_string()).collect();
        assert!(errors[0].starts_with(&format!("checkpoint: {}: ", path.display())), "{errors:?}");
        assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        errors[0].clone()
    };
    assert!(refused(1, &config).contains("was made by 2 ranks and this run has 1; `weights` takes"));
    let other = Config { batch: 5, ..config.clone() };
    assert!(refused(2, &other).ends_with("was made with `batch = 4` and this run has `batch = 5`"));
    let other = Config { weights: path.display().to_string(), ..config.clone() };
    assert!(refused(2, &other).contains("was made with `weights = \"\"` and this run has `weights = \""));
    let whole = std::fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let with = |from: &str, to: &str| {
        let at = whole.windows(from.len()).position(|bytes| bytes == from.as_bytes()).unwrap();
        [&whole[..at], to.as_bytes(), &whole[at + from.len()..]].concat()
    };
    for (bytes, says) in [
        (&flipped[..], "checksum"),
        (&with("optimiser_steps = 6", "optimiser_steps = 0"), "checksum"),
        (&with("good = 0", "good = 7"), "checksum"),
        (&with("optimiser.m", "optimiser.n"), "checksum"),
        (&with("version = 2", "version = 1"), "is of format 1 and this version reads 2"),
        (&with("version = 2", "versioa = 2"), "is of format 1 and this version reads 2"),
        (&whole[..whole.len() - 9], ""),
        (&whole[..5], ""),
        (&[], ""),
    ] {
        std::fs::write(&path, bytes).unwrap();
        assert!(refused(2, &config).contains(says), "{says}");
    }
}

#[test]
fn a_checkpoint_of_another_number_of_losses_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config { checkpoint_dir: directory.path().display().to_string(), ..small() };
    let mut model = Model::new(mlp::<f32>(4, &[3], 2).unwrap(), 3).unwrap();
    let mut sgd = Sgd::new(0.0, 0.0, false);
    let path = checkpoint::save(&config, (2, 1), &model, &mut sgd, None, (&[0.5], &Vec::new())).unwrap();
    let error = checkpoint::load(&path, (&config, 1), &mut model, &mut sgd, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().ends_with("has 1 losses of 2 steps"), "{error}");
}

/// The last step's weights are looked at too: by the score, and before they would take the place of a checkpoint. What is
/// kept may have led there, and is named.
#[test]
fn a_run_that_diverged_in_its_last_step_ends_badly_and_keeps_what_it_had() {
    let end = |config: &Config| {
        let each = World::threads(2).run_each(|comm| train(config, &comm, &mut ())).unwrap();
        let first = each.first.unwrap().index();
        each.ranks.into_iter().nth(first).unwrap().unwrap_err().to_string()
    };
    let plain = Config { lr: 1e38, momentum: 0.0, max_steps: 1, ..small() };
    let says = end(&plain);
    assert!(says.contains("step 0: the test loss of rank ") && !says.contains("checkpoint"), "{says}");
    let directory = tempfile::tempdir().unwrap();
    let kept = Config {
        checkpoint_dir: directory.path().display().to_string(),
        checkpoint_every: 1,
        checkpoint_keep: 1,
        lr_schedule: "milestones".into(),
        lr_milestones: vec![2],
        lr_factor: 1e41,
        lr: 0.1,
        max_steps: 3,
        ..plain
    };
    let says = end(&kept);
    assert!(says.contains("step 2: a weight of rank 0 is ") && says.contains("step-00000002"), "{says}");
    let names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["step-00000002.safetensors"]);
}

/// A run that begins anew would lose its checkpoints to those of a longer one; a run that is over already trains no further.
#[test]
fn another_run_s_checkpoints_are_neither_lost_nor_gone_past() {
    let directory = tempfile::tempdir().unwrap();
    let fresh =
        Config { checkpoint_dir: directory.path().display().to_string(), checkpoint_every: 6, ..small() };
    let want = run(&World::threads(2), &fresh);
    let refused = |config: &Config| {
        World::threads(2).run(|comm| train(config, &comm, &mut ())).unwrap_err().to_string()
    };
    assert!(
        refused(&Config { max_steps: 4, ..fresh.clone() }).ends_with(
            "has checkpoints already: set `resume` to go on from the newest, or name another folder"
        )
    );
    let resumed = Config { resume: true, ..fresh.clone() };
    assert!(
        refused(&Config { max_steps: 5, ..resumed.clone() }).contains("has 6 steps and this run ends at 5")
    );
    assert_eq!(bits(&run(&World::threads(2), &resumed)), bits(&want));
    // What writes none loses none.
    assert_eq!(bits(&run(&World::threads(2), &Config { checkpoint_every: 0, ..fresh })), bits(&want));
}

/// An epoch is told with the steps of the whole run, wherever this part of it began.
#[test]
fn a_resumed_run_tells_epochs_by_the_steps_of_the_whole() {
    struct Epochs(Vec<(u64, u64)>);
    impl Observer for Epochs {
        fn epoch(&mut self, report: &EpochReport) {
            self.0.push((report.epoch, report.steps));
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        train_samples: 12,
        max_steps: 4,
        checkpoint_dir: directory.path().display().to_string(),
        checkpoint_every: 1,
        resume: true,
        ..small()
    };
    run(&World::threads(1), &config);
    let longer = Config { max_steps: 8, ..config };
    let epochs = World::threads(1).run(|comm| {
        let mut epochs = Epochs(Vec::new());
        train(&longer, &comm, &mut epochs).map(|_| epochs.0)
    });
    assert_eq!(epochs.unwrap()[0], [(1, 6), (2, 8)]);
}

/// More steps would bend the whole curve of rates, also the part that is behind.
#[test]
fn a_run_whose_rates_depend_on_its_end_is_not_made_longer() {
    for (schedule, refused) in [("cosine", true), ("polynomial", true), ("one_cycle", true), ("step", false)]
    {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            lr_schedule: schedule.into(),
            max_steps: 2,
            checkpoint_dir: directory.path().display().to_string(),
            checkpoint_every: 1,
            resume: true,
            ..small()
        };
        run(&World::threads(1), &config);
        let longer = Config { max_steps: 3, ..config.clone() };
        let end = World::threads(1).run(|comm| train(&longer, &comm, &mut ()));
        assert_eq!(end.is_err(), refused, "{schedule}");
        if let Err(error) = end {
            let error = error.to_string();
            let says = "`max_steps = 2` and this run has `epochs = 4` and `max_steps = 3`: its rates, of `";
            assert!(error.contains(says) && error.contains(schedule), "{error}");
            assert_eq!(run(&World::threads(1), &config).losses.len(), 2);
        }
    }
}

/// Why the default is canonical, and that the test above can fail: a ring adds in an order that depends on where in
/// the bucket an element lies.
#[test]
fn a_ring_changes_the_weights_with_the_bucket_size() {
    let world = World::threads(4).algorithm(Collective::AllReduce, "ring");
    let with = |bucket_kib| {
        let config = Config { first_bucket_kib: bucket_kib, bucket_kib, ..small() };
        run(&world, &config).weights_hash
    };
    assert_eq!(with(0), with(0));
    assert_ne!(with(0), with(1024));
}

/// Trains by hand, so that the weights can be looked at: (losses, parameters).
fn fit<F: Float>(network: Network<F>, per_rank: usize, comm: &Communicator) -> Result<(Vec<f64>, Vec<f64>)> {
    let strategy = if comm.size() == 1 { "single" } else { "ddp" };
    let config =
        Config { strategy: strategy.into(), first_bucket_kib: 1, bucket_kib: 1, ..Config::default() };
    let (train, _) = data::digits()?;
    let train = train.first(240);
    let mut strategy = build(&config, &network, comm)?;
    // Each rank draws other weights; rank 0's win.
    let mut model = Model::new(network, u64::from(comm.rank().0))?;
    strategy.start(&mut model)?;
    let mut sgd = Sgd::new(0.9, 1e-4, false);
    let sampler = Sampler { samples: 240, world: comm.size() as usize, drop_last: false, shuffle: Some(5) };
    let (mut batch, mut losses) = (Batch::default(), Vec::new());
    for epoch in 0..3 {
        for samples in sampler.indices(comm.rank().index(), epoch).chunks(per_rank) {
            train.gather::<F>(samples, &mut batch)?;
            strategy.forward(&mut model, &batch.x)?;
            losses.push(strategy.backward(&mut model, Objective::mean(&batch.labels))?.loss.to_f64());
            sgd.step(0.05, &mut model.params, &model.grads);
        }
    }
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
        let alone = World::threads(1).run(|comm| fit(network(), 24, &comm)).unwrap().remove(0);
        for ranks in [2, 3, 4, 8] {
            let all = World::threads(ranks).run(|comm| fit(network(), 24 / ranks as usize, &comm)).unwrap();
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

/// Every registered strategy and element type, and the models for small pictures; on one rank the strategies have nothing
/// to differ by.
#[test]
fn all_strategies_agree_on_one_rank() {
    assert!(MODELS.iter().any(|(name, _)| *name == "resnet18"));
    for model in ["mlp", "cnn", "resnet18"] {
        for dtype in ["f32", "f64"] {
            // Two steps and a score: of all 360 test samples it would take most of the time.
            let with = |strategy: &str| {
                let (model, dtype, strategy) = (model.to_string(), dtype.into(), strategy.into());
                let config = Config { model, dtype, strategy, max_steps: 2, validation: 12, ..small() };
                bits(&run(&World::threads(1), &config))
            };
            let all: Vec<_> = STRATEGIES.iter().map(|(strategy, _)| (strategy, with(strategy))).collect();
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

/// A text has a label at each position: its score is a share of those, and its loss the mean that is trained on.
#[test]
fn evaluation_of_a_text_counts_positions() {
    let config = Config {
        model: "gpt".into(),
        data: "synthetic".into(),
        synthetic_samples: 70,
        synthetic_classes: 11,
        positions: 12,
        layers: 1,
        width: 8,
        heads: 2,
        ..small()
    };
    let (train, test) = data::load(&config).unwrap();
    let mut batch = Batch::default();
    test.gather::<f64>(&(0..test.len()).collect::<Vec<_>>(), &mut batch).unwrap();
    let model = || Model::<f64>::new(models::build(&config, train.shape, train.classes)?, 3);
    let whole = |comm: Communicator| -> Result<f64> {
        let mut model = model()?;
        let mut strategy = build(&config, model.network(), &comm)?;
        strategy.forward(&mut model, &batch.x)?;
        Ok(strategy.backward(&mut model, Objective::mean(&batch.labels))?.loss)
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
    let config = Config { epochs: 3, ..Config::default() };
    let result = run(&World::threads(2), &config);
    assert!(result.test.accuracy() > 0.92, "accuracy {}", result.test.accuracy());
    assert_eq!(result.losses.len(), 3 * 1437usize.div_ceil(2).div_ceil(16));
}

#[test]
fn ranks_with_different_models_are_refused_by_name() {
    let body = |comm: Communicator| {
        let hidden = if comm.rank().0 == 2 { 17 } else { 16 };
        let network = mlp::<f32>(64, &[hidden], 10)?;
        build(&Config::default(), &network, &comm)?.start(&mut Model::new(network, 0)?)
    };
    let error = World::threads(4).run(body).unwrap_err();
    assert!(matches!(error, Error::Replicas(_)));
    assert!(error.to_string().contains("rank 2 has 4 parameters of 1285 elements"), "{error}");
}

#[test]
fn single_on_several_ranks_is_refused() {
    let config = Config { strategy: "single".into(), ..small() };
    let error = World::threads(2).run(|comm| train(&config, &comm, &mut ())).unwrap_err();
    assert!(error.to_string().starts_with("strategy `single` trains on one rank and there are 2"), "{error}");
}

/// The last step's time, which is steady: the ranks of the first one start as the broadcast of the weights left them.
#[derive(Default)]
struct LastStep(Breakdown);

impl Observer for LastStep {
    fn step(&mut self, report: &StepReport) {
        self.0 = report.time;
    }
}

/// Three steps of the CNN of the digits on the virtual clock: each rank's last step and its buckets, and the
/// prediction.
fn timed(ranks: u32, device: Device, config: &Config) -> (Vec<(Breakdown, TrainResult)>, Prediction) {
    let (topology, costs) = (switch(ranks), Costs::default());
    let config = Config { max_steps: 3, ..config.clone() };
    let (train, test) = data::digits().unwrap();
    let (train, test) = (train.first(3 * config.batch * ranks as usize), test.first(10));
    let real = World::sim(&topology).device(device).costs(costs).run(|comm| {
        let mut last = LastStep::default();
        let result = train_on(&config, &train, &test, &comm, &mut last)?;
        Ok::<_, Error>((last.0, result))
    });
    let plan = Plan::default();
    let machine = Machine { device, topology: &topology, costs, sharing: Sharing::default(), plan: &plan };
    (real.unwrap(), predict(&config, (1, 8, 8), 10, &machine).unwrap())
}

#[test]
fn communication_overlaps_with_backward_on_the_virtual_clock() {
    let many = Config { first_bucket_kib: 1, bucket_kib: 32, batch: 8, ..Config::default() };
    for (step, result) in timed(4, Device::CPU_CORE, &many).0 {
        let (exposed, total) = (step.exposed, communication(&result.buckets));
        assert!(result.buckets.len() > 2 && exposed < total, "exposed {exposed} of {total}");
        for pair in result.buckets.windows(2) {
            assert!(pair[0].sent <= pair[1].sent && pair[0].done < pair[1].done);
            assert!(pair[1].ready <= pair[1].sent && pair[1].sent < pair[1].done);
        }
        // All gradients in one bucket: nothing is left of backward to hide behind.
        let one = Config { first_bucket_kib: 1 << 20, ..many.clone() };
        let (one, result) = timed(4, Device::CPU_CORE, &one).0.swap_remove(0);
        assert_eq!((result.buckets.len(), one.exposed), (1, communication(&result.buckets)));
        assert!(one.exposed > exposed);
    }
}

/// Equal to the picosecond where every bucket's elements divide among the ranks. Else ranks leave an all-reduce a few
/// nanoseconds apart (folded rank counts: up to a message), and the prediction, in which one stands for all, is
/// that of the slowest.
#[test]
fn the_prediction_is_the_virtual_clock_of_a_real_run() {
    // On one device backward hides nearly everything, on the other the network is what is waited for.
    let devices = [Device::CPU_CORE, Device::A100_F32];
    for (ranks, device) in [1, 2, 3, 4, 6, 8].into_iter().flat_map(|n| devices.map(|device| (n, device))) {
        for (first_bucket_kib, bucket_kib) in [(1, 32), (64, 64), (1024, 1024)] {
            // The totals of synchronised batch norms are odd in number: ranks leave those apart.
            let config = Config {
                batch: 4,
                accumulate: if first_bucket_kib == 64 { 3 } else { 1 },
                sync_batch_norm: ranks == 1,
                optimiser: if ranks == 2 { "adam" } else { "sgd" }.into(),
                loss_scale: if ranks == 1 { 8.0 } else { 0.0 },
                clip_norm: if ranks == 4 { 1.0 } else { 0.0 },
                first_bucket_kib,
                bucket_kib,
                ..Config::default()
            };
            let (real, predicted) = timed(ranks, device, &config);
            let (predicted, buckets) = (predicted.time.total(), predicted.buckets);
            assert!(real.iter().all(|(_, result)| result.buckets.len() == buckets.len()));
            let steps = real.iter().map(|(step, _)| step.total());
            let slowest = steps.clone().max().unwrap();
            println!("{ranks} x {}, {} buckets: {slowest} and {predicted}", device.name, buckets.len());
            let even = ranks.is_power_of_two()
                && buckets.iter().all(|bucket| (bucket.bytes / 4).is_multiple_of(u64::from(ranks)));
            let allowed = if even { 0 } else { 10_000 };
            assert!(slowest.0.abs_diff(predicted.0) <= allowed, "{ranks} ranks: {slowest} {predicted}");
            assert!(!even || steps.clone().all(|step| step == predicted), "{ranks} ranks: {predicted}");
        }
    }
}

#[test]
fn a_thousand_ranks_and_more_are_predicted() {
    let mut last = 0.0;
    for ranks in [1, 8, 64, 1024, 4096] {
        let topology = Topology::named("nodes8", ranks).unwrap();
        let plan = Plan::default();
        let (device, costs) = (Device::A100_F32, Costs::default());
        let machine =
            Machine { device, topology: &topology, costs, sharing: Sharing::default(), plan: &plan };
        let step = predict(&Config::default(), (1, 8, 8), 10, &machine).unwrap();
        assert!(step.throughput() > last, "{ranks} ranks: {} samples/s", step.throughput());
        last = step.throughput();
    }
}
