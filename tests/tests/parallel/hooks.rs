//! Hooks: gradients in fewer bytes.

use allfold_collectives::{Collective, Communicator, World};
use allfold_tests::training::{bits, run, small, switch};
use allfold_trainer::data;
use allfold_trainer::strategies::hooks::HOOKS;

/// Hooks that work element by element: the same bits for every bucket size, on both backends.
#[test]
fn elementwise_hooks_do_not_depend_on_the_bucket() {
    for hook in ["none", "fp16", "bf16"] {
        let config = small().with(|c| c.ddp.hook = hook.into());
        let want = bits(&run(&World::threads(3), &config));
        for (first_bucket_kib, bucket_kib) in [(0, 0), (1, 4), (1024, 1024)] {
            let config = config.clone().with(|c| {
                c.ddp.first_bucket_kib = first_bucket_kib;
                c.ddp.bucket_kib = bucket_kib;
            });
            for world in [World::threads(3).any(), World::sim(&switch(3)).any()] {
                assert_eq!(bits(&run(&world, &config)), want, "{hook}, {bucket_kib} KiB");
            }
        }
        if hook != "none" {
            assert_ne!(bits(&run(&World::threads(3), &small())), want, "{hook} changes nothing");
        }
    }
}

/// With every hook training lowers the loss, all ranks have the same weights, and threads and virtual time the same bits.
#[test]
fn every_hook_learns_and_has_the_same_bits_on_both_backends() {
    for (hook, _) in HOOKS {
        let config = small().with(|c| {
            c.ddp.hook = hook.to_string();
            c.ddp.topk_share = 0.2;
            c.ddp.local_steps = 3;
            c.training.max_steps = 24;
            c.ddp.bucket_kib = 64;
            c.data.train_samples = 64;
            c.optimiser.lr = 0.05;
            c.training.epochs = 100;
        });
        let result = run(&World::threads(2), &config);
        assert_eq!(bits(&run(&World::sim(&switch(2)), &config)), bits(&result), "{hook}");
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let (first, last) = (mean(&result.losses[..4]), mean(&result.losses[20..]));
        assert!(last < 0.9 * first, "{hook}: {first} to {last}");
    }
}

/// The errors that a hook remembers are in units of the loss scale: they are rescaled when the loss scale changes, and a step
/// that overflowed leaves them unchanged.
#[test]
fn what_a_hook_remembers_outlives_an_overflow_and_a_change_of_scale() {
    for hook in ["powersgd", "topk"] {
        let plain = small().with(|c| {
            c.ddp.hook = hook.into();
            c.ddp.topk_share = 0.2;
        });
        let scaled = plain.clone().with(|c| {
            c.precision.loss_scale = 1024.0;
            c.precision.scale_interval = 2;
        });
        let world = World::threads(2);
        assert_eq!(bits(&run(&world, &scaled)), bits(&run(&world, &plain)), "{hook}");
        // The first step overflows and is skipped; later steps are taken.
        let overflowing = plain.with(|c| {
            c.precision.loss_scale = 3e38;
            c.precision.scale_backoff = 1e-37;
        });
        let hash = |max_steps, lr| {
            run(
                &world,
                &overflowing.clone().with(|c| {
                    c.training.max_steps = max_steps;
                    c.optimiser.lr = lr;
                }),
            )
            .weights_hash
        };
        assert_eq!(hash(1, 0.1), hash(1, 0.0), "{hook}");
        assert_ne!(hash(3, 0.1), hash(3, 0.0), "{hook}");
    }
}

/// With `local_sgd` no rank sees another's gradients: an overflow on one rank is reported to all ranks, and no rank steps.
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
        let config = small().with(|c| {
            c.model.name = "mlp".into();
            c.ddp.hook = "local_sgd".into();
            c.precision.loss_scale = 1e20;
            c.data.shuffle = false;
            c.training.batch = 1;
            c.data.train_samples = 0;
            c.training.max_steps = 1;
            c.optimiser.lr = lr;
        });
        let body = |comm: Communicator| allfold_trainer::train_on(&config, &train, &test, &comm, &mut ());
        World::threads(2).run(body).unwrap().remove(0).weights_hash
    };
    assert_ne!(hash(0.1, 1.0), hash(0.0, 1.0));
    // With an input of 1e30, the second rank's loss is finite, and its scaled gradients are not.
    assert_eq!(hash(0.1, 1e30), hash(0.0, 1e30));
}

/// A ring adds in an order that depends on where in the bucket an element lies: the test of bucket sizes can fail.
#[test]
fn a_ring_depends_on_the_bucket() {
    let world = World::threads(4).algorithm(Collective::AllReduce, "ring");
    let with = |bucket_kib| {
        run(
            &world,
            &small().with(|c| {
                c.ddp.first_bucket_kib = bucket_kib;
                c.ddp.bucket_kib = bucket_kib;
                c.ddp.hook = "bf16".into();
            }),
        )
        .weights_hash
    };
    assert_ne!(with(0), with(1024));
}

/// A checkpoint holds what a hook has not sent yet, PowerSGD's right matrices, and weights that differ between ranks: a run that
/// is resumed after any step has the same bits, with buckets of the same size.
#[test]
fn a_resumed_run_with_a_hook_has_the_bits_of_one_that_never_stopped() {
    let hooks = ["powersgd", "topk", "local_sgd"];
    for (hook, checkpoint_sharded) in hooks.into_iter().flat_map(|hook| [(hook, false), (hook, true)]) {
        let directory = tempfile::tempdir().unwrap();
        let config = small().with(|c| {
            c.ddp.hook = hook.into();
            c.ddp.topk_share = 0.2;
            c.ddp.local_steps = 2;
            c.data.train_samples = 24;
            c.checkpoint.dir = directory.path().display().to_string();
            c.checkpoint.every = 1;
            c.checkpoint.keep = 6;
            c.checkpoint.sharded = checkpoint_sharded;
        });
        let want = run(&World::threads(2), &config);
        assert_ne!(
            bits(&run(
                &World::threads(2),
                &config.clone().with(|c| {
                    c.checkpoint.every = 0;
                    c.ddp.hook = "none".into();
                })
            )),
            bits(&want)
        );
        let resumed = config.clone().with(|c| {
            c.checkpoint.resume = true;
            c.checkpoint.every = 0;
        });
        for newest in (1..=6).rev() {
            let got = run(&World::threads(2), &resumed);
            assert_eq!((bits(&got), got.test), (bits(&want), want.test), "{hook} after step {newest}");
            let step = directory.path().join(format!("step-{newest:08}"));
            match checkpoint_sharded {
                true => std::fs::remove_dir_all(step.with_extension("sharded")).unwrap(),
                false => std::fs::remove_file(step.with_extension("safetensors")).unwrap(),
            }
        }
    }
}
