//! Sequence parallelism compared with tensor parallelism: the gradients of one step, the bytes that ranks send, and the memory of
//! activations.

use crate::{SAMPLES, distance, gpt, trained};
use allfold_collectives::world::WorldKind;
use allfold_collectives::{Collective, Communicator, World};
use allfold_tests::training::switch;
use allfold_trainer::engine::{Mesh, NetworkSplit, StepInput};
use allfold_trainer::{Batch, Config, DrawKey, Error, MemoryUse, Model, Network, RankTrainer, data, models};
use std::collections::BTreeMap;

/// Tensor parallelism over all ranks, with sequence parallelism or without.
fn shared(sequence_parallel: bool, base: &Config) -> Config {
    let mut config = base.clone().with(|c| {
        c.strategy = "tensor".into();
        c.training.batch = SAMPLES;
    });
    config.parallel.sequence_parallel = sequence_parallel;
    config
}

/// The gradients of the first step, by parameter: what a step of plain gradient descent with a large rate takes off the weights.
fn gradients<K: WorldKind>(world: &World<K>, config: &Config) -> Vec<Vec<f64>> {
    let of = |lr: f64| {
        trained(
            world,
            &config.clone().with(|c| {
                c.optimiser.lr = lr;
                c.optimiser.momentum = 0.0;
                c.training.max_steps = 1;
            }),
        )
    };
    let rate = 1024.0;
    let (before, after) = (of(0.0), of(rate));
    let pairs = before.iter().zip(&after);
    pairs.map(|(a, b)| a.iter().zip(b).map(|(a, b)| (a - b) / rate).collect()).collect()
}

#[test]
fn the_gradients_of_one_step_are_those_of_one_rank() {
    for (dropout, attention_dropout) in [(0.0, 0.0), (0.2, 0.3)] {
        for tied in [true, false] {
            let base = gpt().with(|c| {
                c.model.dropout = dropout;
                c.model.attention_dropout = attention_dropout;
                c.model.tied = tied;
            });
            let alone = base.clone().with(|c| {
                c.strategy = "single".into();
                c.training.batch = SAMPLES;
            });
            let want = gradients(&World::threads(1), &alone);
            assert!(want.iter().all(|grads| grads.iter().any(|grad| *grad != 0.0)));
            for ranks in [2, 4] {
                let far = distance(&want, &gradients(&World::threads(ranks), &shared(true, &base)));
                println!("dropout {dropout}, tied {tied}, {ranks} ranks: {far:e}");
                assert!(far < 1e-12, "{ranks} ranks: {far:e}");
            }
        }
    }
}

/// Steps of one rank of `config` over the same samples, without evaluation. What the rank held at its peak in the last step.
fn steps(config: &Config, comm: &Communicator, count: usize) -> Result<MemoryUse, Error> {
    let (train, _) = data::load(config)?;
    let network = || models::build::<f64>(config, train.form());
    let mut rank = RankTrainer::new(config, network()?, comm)?;
    rank.start(&mut Model::new(network()?, 0)?)?;
    rank.observe(true);
    let mut batch = Batch::default();
    train.gather(&(0..config.training.batch).collect::<Vec<_>>(), &mut batch)?;
    for step in 0..count as u32 {
        let draw_key = DrawKey { step, ..DrawKey::default() };
        rank.step(&mut batch, StepInput { draw_key, ..StepInput::default() }, None)?;
    }
    Ok(rank.peak().unwrap_or_default())
}

/// The bytes that each rank sends in a step, by operation. All operations use a ring.
fn sent(config: &Config, ranks: u32) -> BTreeMap<String, u64> {
    let after = |count: usize| {
        let rings = [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter];
        let world = World::sim(&switch(ranks)).timeline();
        let world = rings.into_iter().fold(world, |world, collective| world.algorithm(collective, "ring"));
        let report = world.run_each(|comm| steps(config, &comm, count)).unwrap();
        let mut by_operation = BTreeMap::<String, Vec<u64>>::new();
        for activity in report.timeline.iter().filter(|activity| activity.sent > 0) {
            let operation = activity.what.split('(').next().unwrap_or_default().to_string();
            let by_rank = by_operation.entry(operation).or_insert_with(|| vec![0; ranks as usize]);
            by_rank[activity.rank.index()] += activity.sent;
        }
        by_operation
    };
    let (one, two) = (after(1), after(2));
    let of_step = |(operation, by_rank): (&String, &Vec<u64>)| {
        let before = one.get(operation).cloned().unwrap_or_else(|| vec![0; by_rank.len()]);
        let step: Vec<u64> = by_rank.iter().zip(&before).map(|(after, before)| after - before).collect();
        assert!(step.iter().all(|sent| *sent == step[0]), "{operation}: {step:?}");
        (operation.clone(), step[0])
    };
    two.iter().map(of_step).filter(|(_, sent)| *sent > 0).collect()
}

/// Over a ring a rank sends (T - 1) / T of the buffer in a gather or a scattered sum, and twice that in a sum.
#[test]
fn each_sum_becomes_a_scattered_sum_and_a_gather_of_the_same_bytes() {
    for ranks in [2, 4] {
        let config = gpt();
        let plain = sent(&shared(false, &config), ranks);
        let sequence = sent(&shared(true, &config), ranks);
        println!("{ranks} ranks: {plain:?}, with sequence parallelism {sequence:?}");
        let share = |numbers: usize| (8 * numbers * (ranks as usize - 1) / ranks as usize) as u64;
        let activation = share(SAMPLES * config.data.positions * config.model.width);
        let blocks = config.model.layers as u64;
        // Forward: the embedding and two row-parallel layers of each block. Backward: two column-parallel layers of each block and
        // the head.
        let sums = 1 + 2 * blocks + 2 * blocks + 1;
        let loss = plain["all_reduce"] - sums * 2 * activation;
        assert_eq!(plain.keys().collect::<Vec<_>>(), ["all_reduce"]);
        // The column-parallel layers gather their input again for their weight gradient. Layer norms sum their gradients, and the
        // table of positions gathers its own.
        let again = 2 * blocks + 1;
        let norms = (2 * blocks + 1) * 2 * share(2 * config.model.width);
        let positions = share(config.data.positions * config.model.width);
        assert_eq!(sequence["reduce_scatter"], sums * activation);
        assert_eq!(sequence["all_gather"], sums * activation + again * activation + positions);
        assert_eq!(sequence["all_reduce"], loss + norms);
        assert_eq!(sequence.len(), 3);
    }
}

/// A rank's part of the network.
fn part(config: &Config, ranks: u32, rank: usize) -> Network<f64> {
    let (train, _) = data::load(config).unwrap();
    let network = models::build::<f64>(config, train.form()).unwrap();
    let mesh = Mesh::of_data(ranks as usize, ranks).unwrap();
    NetworkSplit::of(network, &mesh, rank, config.parallel.sequence_parallel).unwrap().0
}

/// A network's memory by the formula, and by the engine's count at its peak.
#[test]
fn ranks_hold_less_by_what_the_formula_tells() {
    for ranks in [2, 4] {
        let base = gpt().with(|c| c.model.dropout = 0.1);
        let [plain, sequence] = [false, true].map(|sequence_parallel| {
            let config = shared(sequence_parallel, &base);
            let peaks = World::threads(ranks).run(|comm| steps(&config, &comm, 1)).unwrap();
            let of = |(rank, peak): (usize, &MemoryUse)| {
                let part = part(&config, ranks, rank);
                // The formula counts buckets, one more value per parameter, and this strategy has none.
                let (told, held) = (part.memory(SAMPLES), peak.total() + 8 * part.param_count() as u64);
                println!("{ranks} ranks, {sequence_parallel}: {told} for {held}");
                assert!(held <= told && told <= held + held / 10, "{told} for {held}");
                (told, held)
            };
            peaks.iter().enumerate().map(of).collect::<Vec<_>>()
        });
        for ((told, held), (told_after, held_after)) in plain.into_iter().zip(sequence) {
            let (told, held) = (told - told_after, held - held_after);
            assert!(
                held.abs_diff(told) <= told / 10,
                "{ranks} ranks: {told} less by the formula, {held} by count"
            );
        }
    }
}
