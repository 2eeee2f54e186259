//! The parts of this crate, found by name: they train together and with Allfold's own parts, and mistakes are one line.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_collectives::{Communicator, World};
use allfold_standin::{Shim, ShimOptions};
use allfold_trainer::config::check;
use allfold_trainer::cuda::CudaMachine;
use allfold_trainer::engine::StepInput;
use allfold_trainer::own::{self, OwnModel, OwnParts};
use allfold_trainer::train_with;
use allfold_trainer::{
    Batch, Config, Error, Model, RankTrainer, Result, SampleForm, TrainResult, data, models, train,
};
use std::sync::{Arc, Once};

/// The example's configuration with other values of some keys.
fn config(keys: &[(&str, &str)]) -> Config {
    static ADDED: Once = Once::new();
    ADDED.call_once(|| own::add(own_training::PARTS).unwrap());
    let mut config = allfold_trainer::config::parse(include_str!("../spirals.toml"), "spirals.toml").unwrap();
    keys.iter().for_each(|(key, value)| config.set(key, value).unwrap());
    config
}

/// The result of every rank of `ranks` threads.
fn trained(config: &Config, ranks: u32) -> Vec<TrainResult> {
    World::threads(ranks).run(|comm: Communicator| train(config, &comm, &mut ())).unwrap()
}

#[test]
fn the_spirals_are_told_apart_by_own_parts_alone() {
    for ranks in [1, 4] {
        let result = &trained(&config(&[]), ranks)[0];
        let accuracy = result.test.accuracy();
        println!("{ranks} ranks: accuracy {accuracy}");
        assert!(accuracy > 0.95, "{ranks} ranks: {accuracy}");
    }
}

#[test]
fn an_own_strategy_has_the_bits_of_allfolds() {
    let hashes = |ranks: u32| {
        ["ddp", "late_ddp", "zero1", "zero3"].map(|strategy| {
            let config =
                config(&[("strategy", strategy), ("training.epochs", "3"), ("precision.dtype", "f64")]);
            trained(&config, ranks)[0].weights_hash
        })
    };
    for ranks in [1, 2, 4] {
        let all = hashes(ranks);
        assert!(all.iter().all(|hash| *hash == all[0]), "{ranks} ranks: {all:x?}");
    }
}

/// A strategy calls the engine of its rank, which computes on a GPU as well; the shim is one without a device.
#[test]
fn an_own_strategy_runs_on_gpus() {
    let losses = |device: &str| {
        let keys =
            [("model.name", "mlp"), ("optimiser.name", "sgd"), ("device", device), ("training.epochs", "2")];
        let config = config(&keys);
        let (train, test) = data::load(&config).unwrap();
        let shim =
            (device == "cuda").then(|| Shim::with(ShimOptions::default()).unwrap() as Arc<dyn CudaMachine>);
        let body = |comm: Communicator| train_with(&config, &train, &test, &comm, shim.clone(), &mut ());
        World::threads(2).run(body).unwrap().swap_remove(0).losses
    };
    let (cpu, gpus) = (losses("cpu"), losses("cuda"));
    assert_eq!(cpu.len(), gpus.len());
    assert!(cpu.iter().zip(&gpus).all(|(a, b)| (a - b).abs() < 1e-4 * a), "{cpu:?} {gpus:?}");
}

#[test]
fn an_own_hook_exchanges_gradients() {
    let result = trained(
        &config(&[
            ("strategy", "ddp"),
            ("ddp.hook", "majority"),
            ("optimiser.name", "sgd"),
            ("optimiser.lr", "0.002"),
            ("optimiser.weight_decay", "0"),
        ]),
        4,
    );
    assert!(result.iter().all(|rank| rank.weights_hash == result[0].weights_hash));
    let (first, last) = (result[0].losses[0], result[0].losses[result[0].losses.len() - 1]);
    assert!(last < 0.8 * first, "the loss went from {first} to {last}");
}

#[test]
fn the_own_layers_gradients_are_those_of_differences() {
    let config = config(&[("model.hidden", "[5]"), ("strategy", "single")]);
    let network = || models::build::<f64>(&config, SampleForm::new((1, 1, 2), 2));
    let body = |comm: Communicator| -> Result<()> {
        let (mut model, mut rank) =
            (Model::new(network()?, 3)?, RankTrainer::new(&config, network()?, &comm)?);
        let mut batch = Batch { x: vec![0.3, -0.7, 1.1, 0.2, -0.4, 0.9], labels: vec![0, 1, 1] };
        let mut loss = |model: &mut Model<f64>| -> Result<(f64, Vec<f64>)> {
            rank.start(model)?;
            Ok((rank.step(&mut batch, StepInput::default(), None)?.loss, rank.gradients()?))
        };
        let (_, grads) = loss(&mut model)?;
        let params = model.network().params();
        let beta = params.iter().find(|place| place.name == "swish1.beta").unwrap().range.clone();
        for at in (0..grads.len()).filter(|at| beta.contains(at) || *at < 10) {
            let value = model.params[at];
            let mut around = |value| {
                model.params[at] = value;
                loss(&mut model).map(|(loss, _)| loss)
            };
            let slope = (around(value + 1e-5)? - around(value - 1e-5)?) / 2e-5;
            model.params[at] = value;
            assert!((slope - grads[at]).abs() < 1e-8, "element {at}: {slope} by differences, {}", grads[at]);
        }
        Ok(())
    };
    World::threads(1).run(body).unwrap();
}

#[test]
fn mistakes_are_one_line() {
    let wrong = |key: &str, value: &str| {
        let mut config = config(&[]);
        let set = config.set(key, value).map_err(Error::from).and_then(|()| check(&config));
        let said = set.unwrap_err().to_string();
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    };
    assert!(wrong("model.name", "swish_mpl").contains("the nearest is `swish_mlp`"));
    assert!(wrong("optimiser.name", "tiger").contains("lion"));
    assert!(wrong("data.name", "spiral").contains("the nearest is `spirals`"));
    let gpu = wrong("device", "cuda");
    assert!(gpu.contains("`lion`, which is the program's own"), "{gpu}");
    let again = own::add(OwnParts::NONE).unwrap_err().to_string();
    assert!(again.contains("add all of them by one call"), "{again}");
    const TAKEN: &[OwnModel] = &[OwnModel { name: "gpt", ..own_training::PARTS.models[0] }];
    let taken = own::add(OwnParts { models: TAKEN, ..OwnParts::NONE });
    assert!(taken.unwrap_err().to_string().contains("there is a model `gpt` already"));
    let (train, test) = data::load(&config(&[])).unwrap();
    assert_eq!((train.len(), test.len(), train.classes), (512, 128, 2));
}
