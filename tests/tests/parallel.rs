//! Data-parallel training in full: hooks, unused parameters, groups, uneven inputs, threads, autocast, and what a bucket's
//! size may and may not change.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_collectives::{Collective, Communicator, World};
use allfold_tests::training::{bits, run, small, switch};
use allfold_trainer::layers::{BatchNorm, Linear, Relu};
use allfold_trainer::strategies::build;
use allfold_trainer::strategies::hooks::HOOKS;
use allfold_trainer::{
    Builder, Config, Error, Model, Network, Objective, Observer, Result, StepReport, data, train,
};

/// Hooks that work element by element: the same bits for every bucket size, on both backends.
#[test]
fn elementwise_hooks_do_not_depend_on_the_bucket() {
    for hook in ["none", "fp16", "bf16"] {
        let config = Config { hook: hook.into(), ..small() };
        let want = bits(&run(&World::threads(3), &config));
        for (first_bucket_kib, bucket_kib) in [(0, 0), (1, 4), (1024, 1024)] {
            let config = Config { first_bucket_kib, bucket_kib, ..config.clone() };
            for world in [World::threads(3).any(), World::sim(&switch(3)).any()] {
                assert_eq!(bits(&run(&world, &config)), want, "{hook}, {bucket_kib} KiB");
            }
        }
        if hook != "none" {
            assert_ne!(bits(&run(&World::threads(3), &small())), want, "{hook} changes nothing");
        }
    }
}

/// Every hook learns, gives all ranks the same weights, and the same bits on threads and on virtual time.
#[test]
fn every_hook_learns_and_has_the_same_bits_on_both_backends() {
    for (hook, _) in HOOKS {
        let config = Config {
            hook: hook.to_string(),
            topk_share: 0.2,
            local_steps: 3,
            max_steps: 24,
            bucket_kib: 64,
            train_samples: 64,
            lr: 0.05,
            epochs: 100,
            ..small()
        };
        let result = run(&World::threads(2), &config);
        assert_eq!(bits(&run(&World::sim(&switch(2)), &config)), bits(&result), "{hook}");
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let (first, last) = (mean(&result.losses[..4]), mean(&result.losses[20..]));
        assert!(last < 0.9 * first, "{hook}: {first} to {last}");
    }
}

/// A group of parameters has buckets of its own; with a canonical algorithm that changes no bits.
#[test]
fn groups_change_buckets_but_no_bits() {
    let want = run(&World::threads(2), &Config { bucket_kib: 1024, first_bucket_kib: 1024, ..small() });
    let groups = vec!["conv".into(), "bn".into()];
    let got =
        run(&World::threads(2), &Config { groups, bucket_kib: 1024, first_bucket_kib: 1024, ..small() });
    assert_eq!((want.buckets.len(), got.buckets.len()), (1, 3));
    assert_eq!(bits(&got), bits(&want));
}

/// Threads of a rank, and workers that load.
#[test]
fn threads_and_workers_change_no_bits() {
    let config = Config { channels: vec![32, 48], batch: 16, max_steps: 4, ..small() };
    let want = bits(&run(&World::threads(2), &config));
    for (threads, workers) in [(2, 0), (1, 2), (3, 1)] {
        let config = Config { threads, workers, ..config.clone() };
        assert_eq!(bits(&run(&World::threads(2), &config)), want, "{threads} threads, {workers} workers");
    }
}

/// Ranks that read the same have the same statistics after a pass if they began it with rank 0's; a pass over a micro-batch
/// that others follow leaves the next one those of its own.
#[test]
fn running_statistics_of_rank_0_reach_all_before_a_step() {
    for broadcast_buffers in [true, false] {
        let config = Config { broadcast_buffers, ..small() };
        let body = |comm: Communicator| -> Result<[Vec<f64>; 2]> {
            let mut builder = Builder::new(4);
            let a = builder.push("fc", Linear::new(4, 3), &[0])?;
            builder.push("bn", BatchNorm::new(3, 1), &[a])?;
            let network = builder.build(1)?;
            let mut strategy = build(&config, &network, &comm)?;
            let mut model = Model::<f64>::new(network, 3)?;
            strategy.start(&mut model)?;
            let after = [false, true].map(|inside| -> Result<Vec<f64>> {
                model.buffers.fill(f64::from(comm.rank().0) + 1.0);
                strategy.forward(&mut model, &[0.5, 2.0, 1.0, 3.0, 4.0, 0.0, 2.5, 1.5])?;
                let buffers = model.buffers.clone();
                strategy.backward(&mut model, Objective { more: !inside, ..Objective::mean(&[1, 2]) })?;
                Ok(buffers)
            });
            let [first, second] = after;
            Ok([first?, second?])
        };
        let ranks = World::threads(2).run(body).unwrap();
        assert_eq!(ranks[0][0] == ranks[1][0], broadcast_buffers);
        assert_ne!(ranks[0][1], ranks[1][1], "within a step each goes on from its own");
        assert_eq!(ranks[0][0], ranks[0][1], "rank 0 keeps its own");
    }
}

/// Samples that do not divide: no rank repeats one, the one that runs out takes part without any, also in what
/// synchronised batch norms add up, and all backends agree.
#[test]
fn uneven_ranks_join_with_synchronised_batch_norms() {
    for ranks in [2, 3, 4] {
        let config = Config {
            uneven: true,
            sync_batch_norm: true,
            train_samples: 4 * ranks as usize + 1,
            accumulate: 2,
            epochs: 2,
            max_steps: 0,
            ..small()
        };
        let result = run(&World::threads(ranks), &config);
        // Four samples each, and one rank has a fifth: two steps per epoch, the second for that rank alone.
        assert_eq!(result.losses.len(), 4);
        assert!(result.losses.iter().all(|loss| loss.is_finite() && *loss > 0.0));
        assert_eq!(bits(&run(&World::sim(&switch(ranks)), &config)), bits(&result), "{ranks} ranks");
        let buckets = Config { first_bucket_kib: 0, bucket_kib: 0, ..config.clone() };
        assert_eq!(bits(&run(&World::threads(ranks), &buckets)), bits(&result), "{ranks} ranks");
    }
}

/// Two heads, and the loss is that of one.
fn with_spare_head() -> Network<f64> {
    let mut builder = Builder::new(64);
    let a = builder.push("fc1", Linear::new(64, 8), &[0]).unwrap();
    let a = builder.push("relu", Relu::new(8), &[a]).unwrap();
    builder.push("spare", Linear::new(8, 10), &[a]).unwrap();
    builder.push("main", Linear::new(8, 10), &[a]).unwrap();
    builder.build(1).unwrap()
}

fn backward(config: &Config, comm: &Communicator) -> Result<(Vec<f64>, Vec<usize>)> {
    let network = with_spare_head();
    let mut strategy = build(config, &network, comm)?;
    let mut model = Model::<f64>::new(network, 3)?;
    strategy.start(&mut model)?;
    let (train, _) = data::digits()?;
    let mut batch = allfold_trainer::Batch::default();
    let rank = comm.rank().index();
    train.gather::<f64>(&[rank, rank + 7], &mut batch)?;
    for _ in 0..2 {
        strategy.forward(&mut model, &batch.x)?;
        strategy.backward(&mut model, Objective::mean(&batch.labels))?;
    }
    Ok((model.grads.into_vec(), strategy.unused().to_vec()))
}

#[test]
fn parameters_without_a_gradient_are_found_or_named() {
    let config = Config { first_bucket_kib: 0, bucket_kib: 0, ..Config::default() };
    let error = World::threads(2).run(|comm| backward(&config, &comm)).unwrap_err();
    assert!(matches!(error, Error::Config(_)));
    let says = error.to_string();
    assert!(
        says.starts_with("2 of 6 parameters had no gradient in this step, `spare.weight` first"),
        "{says}"
    );
    for config in [Config { find_unused: true, ..config.clone() }, Config { static_graph: true, ..config }] {
        for (grads, unused) in World::threads(2).run(|comm| backward(&config, &comm)).unwrap() {
            assert_eq!(unused, [2, 3]);
            let network = with_spare_head();
            let spare = network.params()[2].range.start..network.params()[3].range.end;
            assert!(grads[spare.clone()].iter().all(|&g| g == 0.0));
            assert!(grads[..spare.start].iter().any(|&g| g != 0.0));
            assert!(grads[spare.end..].iter().any(|&g| g != 0.0));
        }
    }
}

/// Half precision with a loss scale: every backend, rank count, bucket size and thread count the same, and different from
/// f32.
#[test]
fn a_mixed_precision_run_has_the_same_bits_everywhere() {
    for amp in ["f16", "bf16"] {
        let config = Config {
            amp: amp.into(),
            loss_scale: 65536.0,
            scale_interval: 2,
            sync_batch_norm: true,
            accumulate: 2,
            clip_norm: 1.0,
            max_steps: 20,
            ..small()
        };
        for ranks in 1..=8 {
            let want = bits(&run(&World::threads(ranks), &config));
            let other = Config { first_bucket_kib: 1024, threads: 2, ..config.clone() };
            assert_eq!(bits(&run(&World::sim(&switch(ranks)), &other)), want, "{amp}, {ranks} ranks");
            let wide = Config { amp: "none".into(), ..config.clone() };
            assert_ne!(bits(&run(&World::threads(ranks), &wide)), want, "{amp}, {ranks} ranks");
        }
    }
}

/// The first buckets are of the parameters in reverse, as PyTorch's; what is ready after all others then moves behind them.
#[test]
fn buckets_are_made_again_in_ready_order_and_change_no_bits() {
    let with = |config: Config| {
        let body = move |comm: Communicator| -> Result<(Vec<Vec<u64>>, Vec<f64>)> {
            let network = with_spare_head();
            let mut strategy = build(&config, &network, &comm)?;
            let mut model = Model::new(network, 3)?;
            strategy.start(&mut model)?;
            let mut elements = Vec::new();
            for step in 0..3 {
                let at = |i: usize| (i * 7 + step * 5 + comm.rank().index()) as f64 % 11.0;
                strategy.forward(&mut model, &(0..128).map(at).collect::<Vec<_>>())?;
                strategy.backward(&mut model, Objective::mean(&[1, 2]))?;
                elements.push(strategy.buckets().iter().map(|bucket| bucket.bytes / 8).collect());
            }
            Ok((elements, model.grads.into_vec()))
        };
        World::threads(2).run(body).unwrap().remove(0)
    };
    let config = Config { first_bucket_kib: 0, bucket_kib: 0, ..Config::default() };
    let (made, grads) = with(Config { static_graph: true, ..config.clone() });
    let (registered, ready) = ([10, 80, 10, 80, 8, 512], [10, 80, 8, 512, 80, 10]);
    assert_eq!(made, [registered, ready, ready]);
    let (made, asked) = with(Config { find_unused: true, ..config });
    assert_eq!(made, [ready; 3]);
    assert_eq!(grads, asked);
}

#[test]
fn frozen_parameters_keep_their_values_and_are_not_sent() {
    let config = Config { frozen: vec!["conv1".into(), "bn1".into()], weight_decay: 0.1, ..small() };
    let all: u64 = run(&World::threads(2), &small()).buckets.iter().map(|bucket| bucket.bytes).sum();
    let result = run(&World::threads(2), &config);
    let sent: u64 = result.buckets.iter().map(|bucket| bucket.bytes).sum();
    assert_eq!(all - sent, 4 * (4 * 9 + 8));
}

/// The rank, the step and the layer, on all ranks; and none goes on.
#[test]
fn a_loss_that_is_no_number_ends_the_run_and_is_named() {
    let config = Config { lr: 1e30, ..small() };
    for ranks in [1, 3] {
        let error = World::threads(ranks).run(|comm| train(&config, &comm, &mut ())).unwrap_err().to_string();
        let named =
            error.contains("the first output that is not finite is that of `") && error.contains("step ");
        assert!(named, "{error}");
    }
}

/// A loss scale does not save a run whose loss is no number: it is named there too. In f16, where a loss may be too large
/// for a moment, it is after ten of them.
#[test]
fn a_loss_that_is_no_number_is_named_under_a_loss_scale_too() {
    let scaled = Config { lr: 1e30, loss_scale: 1024.0, ..small() };
    let end = |config: &Config| World::threads(2).run(|comm| train(config, &comm, &mut ()));
    for amp in ["none", "bf16"] {
        let error = end(&Config { amp: amp.into(), ..scaled.clone() }).unwrap_err().to_string();
        assert!(error.contains("the first output that is not finite is that of `"), "{error}");
    }
    // Each rank's losses, and how the run ended: with another in the tenth step in a row, or before by the score.
    let ends = |max_steps| {
        let half = Config { amp: "f16".into(), max_steps, ..scaled.clone() };
        let body = |comm: Communicator| {
            let mut losses = Losses(Vec::new());
            let error = train(&half, &comm, &mut losses).unwrap_err().to_string();
            Ok::<_, Error>((losses.0, error))
        };
        World::threads(2).run(body).unwrap()
    };
    for (losses, error) in ends(9) {
        let first = losses.iter().position(|loss| !loss.is_finite()).unwrap();
        assert!(losses.len() == 9 && losses[first..].iter().all(|loss| !loss.is_finite()), "{losses:?}");
        assert!(error.contains("step 8: the test loss of rank"), "{error}");
    }
    let long = ends(40);
    let bad = |(losses, _): &(Vec<f64>, String)| losses.iter().position(|loss| !loss.is_finite());
    let first = long.iter().filter_map(bad).min().unwrap();
    for (_, error) in &long {
        assert!(error.contains(&format!("step {}: the loss of rank", first + 9)), "{error}");
    }
}

/// This rank's.
struct Losses(Vec<f64>);

impl Observer for Losses {
    fn step(&mut self, report: &StepReport) {
        self.0.push(report.loss);
    }
}

/// One value per channel has no deviation, whoever holds it: every rank refuses, and names the layer.
#[test]
fn one_sample_of_all_ranks_is_refused_by_a_synchronised_batch_norm() {
    let body = |samples: [usize; 2]| {
        let end = move |comm: Communicator| -> Result<()> {
            let mut builder = Builder::new(64);
            let a = builder.push("fc", Linear::new(64, 8), &[0])?;
            builder.push("norm", BatchNorm::new(8, 1), &[a])?;
            let network: Network<f32> = builder.build(1)?;
            let mut strategy = build(&Config::default(), &network, &comm)?;
            let mut model = Model::new(network, 3)?;
            assert_eq!(model.synchronise(), 1);
            strategy.start(&mut model)?;
            strategy.forward(&mut model, &vec![0.5; 64 * samples[comm.rank().index()]]).map(drop)
        };
        World::threads(2).run(end)
    };
    for samples in [[1, 0], [0, 1]] {
        let error = body(samples).unwrap_err().to_string();
        let says =
            "`norm` normalises by the batch and would have 1 value per channel; all ranks together need 2";
        assert!(error.contains(says), "{error}");
    }
    for samples in [[1, 1], [2, 0]] {
        body(samples).unwrap();
    }
}

/// Counted where they are: ranks differ in how many they have.
#[test]
fn samples_of_uneven_ranks_are_counted() {
    for uneven in [false, true] {
        let config = Config { uneven, train_samples: 9, epochs: 2, max_steps: 0, ..small() };
        for rank in World::threads(2).run(|comm| train(&config, &comm, &mut ())).unwrap() {
            assert_eq!(rank.samples, if uneven { 18 } else { 20 });
        }
    }
}

/// Of a step cut into micro-batches the first that went wrong is looked at, before the next one's activations replace it.
#[test]
fn the_layer_is_that_of_the_micro_batch_that_went_wrong() {
    let (train, test) = data::digits().unwrap();
    let mut batch = allfold_trainer::Batch::<f32>::default();
    train.gather(&[0, 1, 2, 3], &mut batch).unwrap();
    batch.x[70] = f32::NAN;
    let samples = data::Samples::Numbers(batch.x);
    let train = data::Dataset { samples, labels: batch.labels, ..train };
    let config = Config { shuffle: false, accumulate: 2, train_samples: 0, ..small() };
    let end = World::threads(1).run(|comm| allfold_trainer::train_on(&config, &train, &test, &comm, &mut ()));
    let error = end.unwrap_err().to_string();
    assert!(error.contains("the first output that is not finite is that of `the input`"), "{error}");
}

/// Nothing to train on is no run.
#[test]
fn an_epoch_without_a_step_is_refused() {
    let config = Config { drop_last: true, train_samples: 2, ..small() };
    let end = World::threads(3).run(|comm| train(&config, &comm, &mut ()));
    let error = end.unwrap_err().to_string();
    assert!(
        error.contains("2 training samples, of which `drop_last`") && error.contains("3 ranks"),
        "{error}"
    );
    assert_eq!(run(&World::threads(2), &Config { epochs: 1, ..config }).losses.len(), 1);
}

/// Remembered errors are in units of the loss scale: where it moves, they move with it, and a step that overflowed leaves
/// what was remembered before it.
#[test]
fn what_a_hook_remembers_outlives_an_overflow_and_a_change_of_scale() {
    for hook in ["powersgd", "topk"] {
        let plain = Config { hook: hook.into(), topk_share: 0.2, ..small() };
        let scaled = Config { loss_scale: 1024.0, scale_interval: 2, ..plain.clone() };
        let world = World::threads(2);
        assert_eq!(bits(&run(&world, &scaled)), bits(&run(&world, &plain)), "{hook}");
        // The first step overflows and is skipped: those that follow are taken.
        let overflowing = Config { loss_scale: 3e38, scale_backoff: 1e-37, ..plain };
        let hash = |max_steps, lr| run(&world, &Config { max_steps, lr, ..overflowing.clone() }).weights_hash;
        assert_eq!(hash(1, 0.1), hash(1, 0.0), "{hook}");
        assert_ne!(hash(3, 0.1), hash(3, 0.0), "{hook}");
    }
}

/// With `local_sgd` no rank sees another's gradients: that one's overflowed is told to all, and none steps.
#[test]
fn an_overflow_on_one_rank_is_skipped_by_all() {
    let (train, test) = data::digits().unwrap();
    let mut batch = allfold_trainer::Batch::<f32>::default();
    train.gather(&[0, 2], &mut batch).unwrap();
    let hash = |lr, loud: f32| {
        let mut x = batch.x.clone();
        x[64..].iter_mut().for_each(|x| *x *= loud);
        let train = data::Dataset {
            samples: data::Samples::Numbers(x),
            labels: batch.labels.clone(),
            ..train.clone()
        };
        let config = Config {
            model: "mlp".into(),
            hook: "local_sgd".into(),
            loss_scale: 1e20,
            shuffle: false,
            batch: 1,
            train_samples: 0,
            max_steps: 1,
            lr,
            ..small()
        };
        let body = |comm: Communicator| allfold_trainer::train_on(&config, &train, &test, &comm, &mut ());
        World::threads(2).run(body).unwrap().remove(0).weights_hash
    };
    assert_ne!(hash(0.1, 1.0), hash(0.0, 1.0));
    // Loud, the second rank's sample is taken for another digit: its loss is finite, and its scaled gradients are not.
    assert_eq!(hash(0.1, 1e30), hash(0.0, 1e30));
}

/// Buckets are views: what comes back from the exchange are the same elements in the same place, however many there are.
#[test]
fn gradients_are_summed_where_they_lie() {
    let body = |comm: Communicator| -> Result<Vec<bool>> {
        let config = Config { first_bucket_kib: 0, bucket_kib: 0, ..Config::default() };
        let network = allfold_trainer::models::mlp::<f32>(64, &[16, 12], 10)?;
        let mut strategy = build(&config, &network, &comm)?;
        let mut model = Model::new(network, 3)?;
        strategy.start(&mut model)?;
        let places = (0..3).map(|_| -> Result<*const f32> {
            strategy.forward(&mut model, &[0.5; 128])?;
            strategy.backward(&mut model, Objective::mean(&[1, 2]))?;
            assert_eq!((model.grads.len(), strategy.buckets().len()), (model.params.len(), 6));
            Ok(model.grads.as_ptr())
        });
        let places = places.collect::<Result<Vec<_>>>()?;
        Ok(places.iter().map(|place| *place == places[0]).collect())
    };
    for world in [World::threads(2).any(), World::sim(&switch(2)).any()] {
        assert!(world.run(body).unwrap().into_iter().flatten().all(|same| same));
    }
}

/// A ring adds in an order that depends on where in the bucket an element lies: the test of bucket sizes can fail.
#[test]
fn a_ring_depends_on_the_bucket() {
    let world = World::threads(4).algorithm(Collective::AllReduce, "ring");
    let with = |bucket_kib| {
        run(&world, &Config { first_bucket_kib: bucket_kib, bucket_kib, hook: "bf16".into(), ..small() })
            .weights_hash
    };
    assert_ne!(with(0), with(1024));
}

/// A gpt on random tokens, over ranks, in one process or many: the loss falls, and the bits are the same.
#[test]
fn a_gpt_trains_the_same_everywhere() {
    let config = Config {
        model: "gpt".into(),
        data: "synthetic".into(),
        synthetic_samples: 8,
        synthetic_classes: 11,
        positions: 12,
        layers: 2,
        width: 16,
        heads: 2,
        dropout: 0.1,
        optimiser: "adamw".into(),
        lr: 0.01,
        batch: 2,
        epochs: 20,
        max_steps: 30,
        ..small()
    };
    let result = run(&World::threads(2), &config);
    assert_eq!(bits(&run(&World::sim(&switch(2)), &config)), bits(&result));
    assert!(result.losses[29] < 0.9 * result.losses[0], "{:?}", result.losses);
}

/// What a hook has not sent yet, its right matrices, and weights that are each rank's own: a run that stopped after any
/// step goes on from there to the same bits, with buckets of the same size.
#[test]
fn a_resumed_run_with_a_hook_has_the_bits_of_one_that_never_stopped() {
    for hook in ["powersgd", "topk", "local_sgd"] {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            hook: hook.into(),
            topk_share: 0.2,
            local_steps: 2,
            train_samples: 24,
            checkpoint_dir: directory.path().display().to_string(),
            checkpoint_every: 1,
            checkpoint_keep: 6,
            ..small()
        };
        let want = run(&World::threads(2), &config);
        assert_ne!(
            bits(&run(
                &World::threads(2),
                &Config { checkpoint_every: 0, hook: "none".into(), ..config.clone() }
            )),
            bits(&want)
        );
        let resumed = Config { resume: true, checkpoint_every: 0, ..config.clone() };
        for newest in (1..=6).rev() {
            let got = run(&World::threads(2), &resumed);
            assert_eq!((bits(&got), got.test), (bits(&want), want.test), "{hook} after step {newest}");
            let name = format!("step-{newest:08}.safetensors");
            std::fs::remove_file(directory.path().join(name)).unwrap();
        }
    }
}
