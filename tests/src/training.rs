//! A small training run, and the bits that two equal runs have in common.
#![allow(clippy::unwrap_used, reason = "for tests")]

use allfold_collectives::World;
use allfold_collectives::world::WorldKind;
use allfold_sim::{BytesPerSec, Link, Picos, Topology};
use allfold_trainer::{Config, TrainResult, train};

/// A convolutional network of 1,242 parameters, trained for six steps.
pub fn small() -> Config {
    let channels = vec![4, 6];
    Config::default().with(|c| {
        c.model.channels = channels;
        c.training.batch = 4;
        c.data.train_samples = 200;
        c.training.max_steps = 6;
        c.ddp.first_bucket_kib = 1;
        c.ddp.bucket_kib = 1;
    })
}

/// Ranks around one switch.
pub fn switch(ranks: u32) -> Topology {
    let link = Link { bandwidth: BytesPerSec(10_000_000_000), latency: Picos::from_micros(2) };
    Topology::switch(ranks, link).unwrap()
}

/// Trains on every rank of `world`, checks that all ranks have the same losses and weights, and returns rank 0's result.
pub fn run<K: WorldKind>(world: &World<K>, config: &Config) -> TrainResult {
    let mut ranks = world.run(|comm| train(config, &comm, &mut ())).unwrap();
    let first = ranks.swap_remove(0);
    assert!(ranks.iter().all(|rank| rank.losses == first.losses && rank.weights_hash == first.weights_hash));
    first
}

/// The bits of the losses (last the test loss), and the weights' hash, by which two runs are compared bit for bit.
pub fn bits(result: &TrainResult) -> (Vec<u64>, u64) {
    let all = result.losses.iter().chain([&result.test.loss]);
    (all.map(|loss| loss.to_bits()).collect(), result.weights_hash)
}
