//! Data-parallel training in full: hooks, unused parameters, groups, uneven inputs, threads, autocast, and what a bucket's
//! size may and may not change.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod hooks;
mod refused;

use allfold_collectives::{Communicator, World};
use allfold_tests::training::{bits, run, small, switch};
use allfold_trainer::layers::{BatchNorm, Linear, Relu};
use allfold_trainer::strategies::build;
use allfold_trainer::{
    Builder, Config, Error, Model, Network, Objective, Result, checkpoint, data, models, train, weights,
};

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
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        frozen: vec!["conv1".into(), "bn1".into()],
        weight_decay: 0.1,
        checkpoint_dir: directory.path().display().to_string(),
        checkpoint_every: 1,
        ..small()
    };
    let all: u64 = run(&World::threads(2), &small()).buckets.iter().map(|bucket| bucket.bytes).sum();
    let result = run(&World::threads(2), &config);
    let sent: u64 = result.buckets.iter().map(|bucket| bucket.bytes).sum();
    assert_eq!(all - sent, 4 * (4 * 9 + 8));

    // The decay alone would move every value that the optimiser sees.
    let fresh = || Model::<f32>::new(models::build(&config, (1, 8, 8), 10).unwrap(), config.seed).unwrap();
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
