//! Data-parallel training in full: hooks, unused parameters, groups, uneven inputs, threads, autocast, and what a bucket's
//! size may and may not change.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod hooks;
mod refused;

use allfold_collectives::{Communicator, World};
use allfold_tests::training::{bits, run, small, switch};
use allfold_trainer::config::AutocastType;
use allfold_trainer::engine::StepInput;
use allfold_trainer::layers::{BatchNorm, Linear, Relu};
use allfold_trainer::{
    Batch, Builder, Config, Error, Model, Network, RankTrainer, Result, SampleForm, checkpoint, data, models,
    train, weights,
};

/// A group of parameters has buckets of its own; with a canonical algorithm that changes no bits.
#[test]
fn groups_change_buckets_but_no_bits() {
    let want = run(
        &World::threads(2),
        &small().with(|c| {
            c.ddp.bucket_kib = 1024;
            c.ddp.first_bucket_kib = 1024;
        }),
    );
    let groups = vec!["conv".into(), "bn".into()];
    let got = run(
        &World::threads(2),
        &small().with(|c| {
            c.ddp.groups = groups;
            c.ddp.bucket_kib = 1024;
            c.ddp.first_bucket_kib = 1024;
        }),
    );
    assert_eq!((want.buckets.len(), got.buckets.len()), (1, 3));
    assert_eq!(bits(&got), bits(&want));
}

/// Threads that compute for a rank, and workers that load its data.
#[test]
fn threads_and_workers_change_no_bits() {
    let config = small().with(|c| {
        c.model.channels = vec![32, 48];
        c.training.batch = 16;
        c.training.max_steps = 4;
    });
    let want = bits(&run(&World::threads(2), &config));
    for (threads, workers) in [(2, 0), (1, 2), (3, 1)] {
        let config = config.clone().with(|c| {
            c.threads = threads;
            c.data.workers = workers;
        });
        assert_eq!(bits(&run(&World::threads(2), &config)), want, "{threads} threads, {workers} workers");
    }
}

/// With `ddp.broadcast_buffers` every rank begins a step with rank 0's running statistics; later micro-batches begin with each rank's own.
#[test]
fn running_statistics_of_rank_0_reach_all_before_a_step() {
    let same = [0.5, 2.0, 1.0, 3.0, 4.0, 0.0, 2.5, 1.5];
    for broadcast_buffers in [true, false] {
        let config = small().with(|c| {
            c.ddp.broadcast_buffers = broadcast_buffers;
            c.training.accumulate = 2;
        });
        let body = |comm: Communicator| -> Result<[Vec<f64>; 2]> {
            let network = || -> Result<Network<f64>> {
                let mut builder = Builder::new(4);
                let a = builder.push("fc", Linear::new(4, 3), &[0])?;
                builder.push("bn", BatchNorm::new(3, 1), &[a])?;
                Ok(builder.build(1)?)
            };
            let mut rank = RankTrainer::new(&config, network()?, &comm)?;
            rank.start(&mut Model::new(network()?, 3)?)?;
            // Samples of the first micro-batch are each rank's own, or the same everywhere.
            let mut after = |own: f64| -> Result<Vec<f64>> {
                let first = same.map(|x| x + own * f64::from(comm.rank().0));
                let mut batch = Batch { x: [first, same].concat(), labels: vec![1, 2, 1, 2] };
                rank.step(&mut batch, StepInput::default(), None)?;
                Ok(rank.buffers().to_vec())
            };
            Ok([after(1.0)?, after(0.0)?])
        };
        let ranks = World::threads(2).run(body).unwrap();
        assert_ne!(ranks[0][0], ranks[1][0], "within a step each goes on from its own");
        assert_eq!(ranks[0][1] == ranks[1][1], broadcast_buffers);
    }
}

/// The samples do not divide among the ranks: no rank repeats a sample, a rank without samples still takes part in the step, also
/// in the sums of synchronised batch norms, and all backends agree.
#[test]
fn uneven_ranks_join_with_synchronised_batch_norms() {
    for ranks in [2, 3, 4] {
        let config = small().with(|c| {
            c.data.uneven = true;
            c.model.sync_batch_norm = true;
            c.data.train_samples = 4 * ranks as usize + 1;
            c.training.accumulate = 2;
            c.training.epochs = 2;
            c.training.max_steps = 0;
        });
        let result = run(&World::threads(ranks), &config);
        // Four samples each, and one rank has a fifth: two steps per epoch, the second for that rank alone.
        assert_eq!(result.losses.len(), 4);
        assert!(result.losses.iter().all(|loss| loss.is_finite() && *loss > 0.0));
        assert_eq!(bits(&run(&World::sim(&switch(ranks)), &config)), bits(&result), "{ranks} ranks");
        let buckets = config.clone().with(|c| {
            c.ddp.first_bucket_kib = 0;
            c.ddp.bucket_kib = 0;
        });
        assert_eq!(bits(&run(&World::threads(ranks), &buckets)), bits(&result), "{ranks} ranks");
    }
}

/// A network with two heads, of which only one is in the loss.
fn with_spare_head() -> Network<f64> {
    let mut builder = Builder::new(64);
    let a = builder.push("fc1", Linear::new(64, 8), &[0]).unwrap();
    let a = builder.push("relu", Relu::new(8), &[a]).unwrap();
    builder.push("spare", Linear::new(8, 10), &[a]).unwrap();
    builder.push("main", Linear::new(8, 10), &[a]).unwrap();
    builder.build(1).unwrap()
}

#[test]
fn parameters_without_a_gradient_are_allowed_or_named() {
    let config = Config::default().with(|c| {
        c.ddp.first_bucket_kib = 0;
        c.ddp.bucket_kib = 0;
    });
    let step = |config: &Config, comm: &Communicator| -> Result<(Vec<f64>, Vec<usize>)> {
        let mut trainer = RankTrainer::new(config, with_spare_head(), comm)?;
        trainer.start(&mut Model::new(with_spare_head(), 3)?)?;
        let (train, _) = data::digits()?;
        let (mut batch, rank) = (Batch::default(), comm.rank().index());
        train.gather::<f64>(&[rank, rank + 7], &mut batch)?;
        for _ in 0..2 {
            trainer.step(&mut batch, StepInput::default(), None)?;
        }
        Ok((trainer.gradients()?, trainer.unused()))
    };
    let error = World::threads(2).run(|comm| step(&config, &comm)).unwrap_err();
    assert!(matches!(error, Error::Config(_)));
    let says = error.to_string();
    assert!(says.starts_with("2 of 6 parameters have no gradient, `spare.weight` first"), "{says}");
    for config in
        [config.clone().with(|c| c.ddp.find_unused = true), config.with(|c| c.ddp.static_graph = true)]
    {
        for (grads, unused) in World::threads(2).run(|comm| step(&config, &comm)).unwrap() {
            assert_eq!(unused, [2, 3]);
            let network = with_spare_head();
            let spare = network.params()[2].range.start..network.params()[3].range.end;
            assert!(grads[spare.clone()].iter().all(|&g| g == 0.0));
            assert!(grads[..spare.start].iter().any(|&g| g != 0.0));
            assert!(grads[spare.end..].iter().any(|&g| g != 0.0));
        }
    }
}

/// Half precision with a loss scale: for every rank count the same bits on both backends, bucket sizes and thread counts, and
/// other bits than f32.
#[test]
fn a_mixed_precision_run_has_the_same_bits_everywhere() {
    for amp in ["f16", "bf16"] {
        let config = small().with(|c| {
            c.set("precision.amp", amp).unwrap();
            c.precision.loss_scale = 65536.0;
            c.precision.scale_interval = 2;
            c.model.sync_batch_norm = true;
            c.training.accumulate = 2;
            c.optimiser.clip_norm = 1.0;
            c.training.max_steps = 20;
        });
        for ranks in 1..=8 {
            let want = bits(&run(&World::threads(ranks), &config));
            let other = config.clone().with(|c| {
                c.ddp.first_bucket_kib = 1024;
                c.threads = 2;
            });
            assert_eq!(bits(&run(&World::sim(&switch(ranks)), &other)), want, "{amp}, {ranks} ranks");
            let wide = config.clone().with(|c| c.precision.amp = AutocastType::None);
            assert_ne!(bits(&run(&World::threads(ranks), &wide)), want, "{amp}, {ranks} ranks");
        }
    }
}

/// Buckets follow the order in which gradients become ready, from the first step on. PyTorch finds that order in its first step.
/// Parameters that the loss does not depend on come last, with zeros.
#[test]
fn buckets_are_in_ready_order_from_the_first_step_on() {
    let with = |config: Config| {
        let body = move |comm: Communicator| -> Result<(Vec<Vec<u64>>, Vec<f64>)> {
            let mut rank = RankTrainer::new(&config, with_spare_head(), &comm)?;
            rank.start(&mut Model::new(with_spare_head(), 3)?)?;
            let mut elements = Vec::new();
            for step in 0..3 {
                let at = |i: usize| (i * 7 + step * 5 + comm.rank().index()) as f64 % 11.0;
                let mut batch = Batch { x: (0..128).map(at).collect(), labels: vec![1, 2] };
                rank.step(&mut batch, StepInput::default(), None)?;
                elements.push(rank.buckets().iter().map(|bucket| bucket.bytes / 8).collect());
            }
            Ok((elements, rank.gradients()?))
        };
        World::threads(2).run(body).unwrap().remove(0)
    };
    let config = Config::default().with(|c| {
        c.ddp.first_bucket_kib = 0;
        c.ddp.bucket_kib = 0;
    });
    let (made, grads) = with(config.clone().with(|c| c.ddp.static_graph = true));
    assert_eq!(made, [[10, 80, 8, 512, 80, 10]; 3]);
    let (made, asked) = with(config.with(|c| c.ddp.find_unused = true));
    assert_eq!(made, [[10, 80, 8, 512, 80, 10]; 3]);
    assert_eq!(grads, asked);
}

#[test]
fn frozen_parameters_keep_their_values_and_are_not_sent() {
    let directory = tempfile::tempdir().unwrap();
    let config = small().with(|c| {
        c.model.frozen = vec!["conv1".into(), "bn1".into()];
        c.optimiser.weight_decay = 0.1;
        c.checkpoint.dir = directory.path().display().to_string();
        c.checkpoint.every = 1;
    });
    let all: u64 = run(&World::threads(2), &small()).buckets.iter().map(|bucket| bucket.bytes).sum();
    let result = run(&World::threads(2), &config);
    let sent: u64 = result.buckets.iter().map(|bucket| bucket.bytes).sum();
    assert_eq!(all - sent, 4 * (4 * 9 + 8));

    // The decay alone would move every value that the optimiser sees.
    let fresh = || {
        Model::<f32>::new(models::build(&config, SampleForm::new((1, 8, 8), 10)).unwrap(), config.seed)
            .unwrap()
    };
    let (before, mut after) = (fresh(), fresh());
    let newest = checkpoint::newest(directory.path()).unwrap().unwrap();
    weights::load(&newest, &mut after).unwrap();
    for (param, place) in before.network().params().iter().enumerate() {
        let is_frozen = place.name.starts_with("conv1.") || place.name.starts_with("bn1.");
        let kept = before.param(param) == after.param(param);
        // A bias that begins at 0 has a gradient, too.
        assert_eq!(kept, is_frozen, "{}", place.name);
    }
}

/// A result's `samples` sums the samples of all ranks: with `uneven`, ranks have different numbers of them.
#[test]
fn samples_of_uneven_ranks_are_counted() {
    for uneven in [false, true] {
        let config = small().with(|c| {
            c.data.uneven = uneven;
            c.data.train_samples = 9;
            c.training.epochs = 2;
            c.training.max_steps = 0;
        });
        for rank in World::threads(2).run(|comm| train(&config, &comm, &mut ())).unwrap() {
            assert_eq!(rank.samples, if uneven { 18 } else { 20 });
        }
    }
}

/// Buckets are views of the gradients, whatever their number: they hold no memory of their own, but with a hook they do.
#[test]
fn gradients_are_summed_where_they_lie() {
    let body = |comm: Communicator, hook: &str| -> Result<(usize, u64)> {
        let config = Config::default().with(|c| {
            c.ddp.first_bucket_kib = 0;
            c.ddp.bucket_kib = 0;
            c.ddp.hook = hook.into();
        });
        let network = || allfold_trainer::models::mlp::<f32>(64, &[16, 12], 10);
        let mut rank = RankTrainer::new(&config, network()?, &comm)?;
        rank.start(&mut Model::new(network()?, 3)?)?;
        let mut batch = Batch { x: vec![0.5; 128], labels: vec![1, 2] };
        for _ in 0..3 {
            rank.step(&mut batch, StepInput::default(), None)?;
        }
        Ok((rank.buckets().len(), rank.memory().buckets))
    };
    for world in [World::threads(2).any(), World::sim(&switch(2)).any()] {
        let params = (64 * 16 + 16 + 16 * 12 + 12 + 12 * 10 + 10) * 4;
        for (hook, bytes) in [("none", 0), ("fp16", params)] {
            let ranks = world.run(|comm| body(comm, hook)).unwrap();
            assert_eq!(ranks, [(6, bytes); 2], "{hook}");
        }
    }
}

/// A gpt on random tokens: the loss falls, and the bits are the same on threads and on virtual time.
#[test]
fn a_gpt_trains_the_same_everywhere() {
    let config = small().with(|c| {
        c.model.name = "gpt".into();
        c.data.name = "synthetic".into();
        c.data.synthetic_samples = 8;
        c.data.synthetic_classes = 11;
        c.data.positions = 12;
        c.model.layers = 2;
        c.model.width = 16;
        c.model.heads = 2;
        c.model.dropout = 0.1;
        c.optimiser.name = "adamw".into();
        c.optimiser.lr = 0.01;
        c.training.batch = 2;
        c.training.epochs = 20;
        c.training.max_steps = 30;
    });
    let result = run(&World::threads(2), &config);
    assert_eq!(bits(&run(&World::sim(&switch(2)), &config)), bits(&result));
    assert!(result.losses[29] < 0.9 * result.losses[0], "{:?}", result.losses);
}
