//! Training over communicators: the same bits on every backend, bucket size and canonical algorithm; equality with
//! one process; honest evaluation; overlap on the virtual clock, as predicted.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_collectives::{Collective, Communicator, Plan, World};
use allfold_kernels::nn::Float;
use allfold_sim::{Costs, Device, Sharing, Topology};
use allfold_trainer::modeled::{Machine, predict};
use allfold_trainer::models::{Cnn, cnn, mlp};
use allfold_trainer::strategies::build;
use allfold_trainer::{
    Batch, Config, Error, Model, Network, Result, Sampler, Sgd, TrainResult, data, evaluate, train,
};

/// All-reduces in which every element has the same tree, whatever its place.
const CANONICAL: [&str; 5] = ["halving_doubling", "recursive_doubling", "direct", "binomial", "star"];

/// A convolutional network of 3,000 parameters, trained for six steps.
fn small() -> Config {
    let channels = vec![4, 6];
    Config {
        channels,
        batch: 4,
        train_samples: 200,
        max_steps: 6,
        first_bucket_kib: 1,
        bucket_kib: 1,
        ..Config::default()
    }
}

fn run(world: &World, config: &Config) -> TrainResult {
    let mut ranks = world.run(|comm| train(config, &comm, &mut ())).unwrap();
    let first = ranks.swap_remove(0);
    assert!(ranks.iter().all(|rank| rank.losses == first.losses && rank.weights_hash == first.weights_hash));
    first
}

/// What must be equal for two runs to have the same bits.
fn bits(result: &TrainResult) -> (Vec<u64>, u64) {
    let all = result.losses.iter().chain([&result.test.loss]);
    (all.map(|loss| loss.to_bits()).collect(), result.weights_hash)
}

#[test]
fn the_same_bits_on_every_backend_algorithm_and_bucket_size() {
    for ranks in [1, 2, 3, 4, 8] {
        let want = bits(&run(&World::threads(ranks), &small()));
        for algorithm in CANONICAL {
            for world in [World::threads(ranks)] {
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
    let mut model = Model::new(network, u64::from(comm.rank().0));
    strategy.start(&mut model)?;
    let mut sgd = Sgd::new(0.05, 0.9, 1e-4, false);
    let sampler = Sampler { samples: 240, world: comm.size() as usize, drop_last: false, shuffle: Some(5) };
    let (mut batch, mut losses) = (Batch::default(), Vec::new());
    for epoch in 0..3 {
        for samples in sampler.indices(comm.rank().index(), epoch).chunks(per_rank) {
            train.gather::<F>(samples, &mut batch);
            model.forward(&batch.x, true, |_| ());
            losses.push(strategy.backward(&mut model, &batch.labels)?.loss.to_f64());
            sgd.step(&mut model.params, &model.grads);
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

#[test]
fn evaluation_counts_every_test_sample_once() {
    let (_, test) = data::digits().unwrap();
    let on = |ranks: u32| {
        let network = || mlp::<f64>(64, &[16], 10).unwrap();
        let body = |comm: Communicator| evaluate(&mut Model::new(network(), 3), &test, 32, &comm);
        World::threads(ranks).run(body).unwrap()
    };
    let alone = on(1)[0];
    assert_eq!(alone.samples, 360);
    // 360 samples: 7 ranks have 52 or 51 each; padding would count 364.
    for ranks in [2, 3, 7, 8] {
        for result in on(ranks) {
            assert_eq!((result.samples, result.correct), (alone.samples, alone.correct));
            assert!((result.loss - alone.loss).abs() < 1e-12);
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
        build(&Config::default(), &network, &comm)?.start(&mut Model::new(network, 0))
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
