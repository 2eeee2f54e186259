//! Every strategy on GPUs: on the shim, in f32, by the same drivers as on the CPU.

use super::{ROWS, digits, distance, gpt, llama, mixture, on};
use allfold_collectives::{Communicator, World};
use allfold_cuda::CudaMachine;
use allfold_standin::{Shim, ShimOptions};
use allfold_trainer::config::ElementType;
use allfold_trainer::{Config, Model, checkpoint, data, models, strategies, train_with, weights};
use std::sync::Arc;

/// The weights after the last step on `ranks` ranks with a device each, or on the CPU.
pub(crate) fn trained(config: &Config, ranks: u32, on_gpus: bool) -> Vec<Vec<f64>> {
    let directory = tempfile::tempdir().unwrap();
    let checkpoint_dir = directory.path().display().to_string();
    let config = config.clone().with(|c| {
        c.checkpoint.dir = checkpoint_dir;
        c.checkpoint.every = config.training.max_steps;
        c.device = if on_gpus { "cuda" } else { "cpu" }.into();
    });
    let (train, test) = data::load(&config).unwrap();
    let machine: Option<Arc<dyn CudaMachine>> = on_gpus
        .then(|| Shim::with(ShimOptions { devices: ranks as usize, ..ShimOptions::default() }).unwrap());
    let body =
        |comm: Communicator| train_with(&config, &train, &test, &comm, machine.clone(), &mut ()).map(drop);
    World::threads(ranks).run(body).unwrap();
    let network = models::build(&config, train.form()).unwrap();
    let mut model = Model::<f64>::new(network, 0).unwrap();
    weights::load(&checkpoint::newest(directory.path()).unwrap().unwrap(), &mut model).unwrap();
    (0..model.network().params().len()).map(|param| model.param(param).to_vec()).collect()
}

/// Samples of a step, over all ranks: as few as every row can divide, since the shim runs a lane at a time. Rows that share positions
/// take fewer samples: each of their kernels attends to a chunk of one position, at the cost of a whole tile.
const SAMPLES: usize = 12;
const SAMPLES_OF_SHARED_POSITIONS: usize = 4;

/// The rows that also train whole experts on each rank.
const MIXED: [&str; 5] = ["ddp", "data_parallel", "zero3", "1f1b", "tensor"];

#[test]
fn every_strategy_on_gpus_equals_one_rank_of_the_cpu() {
    let ranks = 4;
    let short = |base: Config| {
        base.with(|c| {
            c.precision.dtype = ElementType::F32;
            c.training.max_steps = 2;
            c.data.validation = 4;
        })
    };
    let sequence = |base: Config| {
        short(base.with(|c| {
            c.data.positions = 8;
            c.model.layers = 2;
        }))
    };
    let bases = [short(digits()), sequence(gpt()), sequence(mixture())];
    let alone = |samples: usize| -> Vec<_> {
        let single = |base: &Config| {
            base.clone().with(|c| {
                c.strategy = "single".into();
                c.training.batch = samples;
            })
        };
        bases.iter().map(|base| trained(&single(base), 1, false)).collect()
    };
    let (alone, alone_with_few) = (alone(SAMPLES), alone(SAMPLES_OF_SHARED_POSITIONS));
    println!("\n{ranks} GPUs (shim): distance of the weights from one rank's of the CPU");
    println!("| {:<22} | {:>6} | {:>6} | {:>6} |", "strategy", "mlp", "gpt", "moe");
    let mut ran = Vec::new();
    for row in &ROWS {
        let Some(data) = (row.data)(ranks) else { continue };
        ran.push(row.strategy);
        let (samples, alone) = match row.name.contains("context") {
            true => (SAMPLES_OF_SHARED_POSITIONS, &alone_with_few),
            false => (SAMPLES, &alone),
        };
        let far = bases.iter().zip(alone).map(|(base, alone)| {
            // A mixture for the rows that share experts, and for one of each kind of the others.
            let takes = base.model.experts == 0 || row.name.contains("expert") || MIXED.contains(&row.name);
            let config = on(row, base, data).with(|c| c.training.batch = samples / data as usize);
            (takes && row.takes(base)).then(|| distance(alone, &trained(&config, ranks, true)))
        });
        let far: Vec<Option<f64>> = far.collect();
        let shown =
            |far: &Option<f64>| far.map_or_else(|| format!("{:>6}", "-"), |far| format!("{far:6.0e}"));
        println!("| {:<22} | {} |", row.name, far.iter().map(shown).collect::<Vec<_>>().join(" | "));
        assert!(far.iter().flatten().all(|far| *far < 1e-4), "{}: {far:?}", row.name);
    }
    let missing: Vec<_> =
        strategies::STRATEGIES.iter().map(|(name, _)| name).filter(|name| !ran.contains(name)).collect();
    assert_eq!(missing, [&"single"], "strategies without a row");
}

/// Layers without a kernel are refused by name before anything runs.
#[test]
fn a_llama_is_refused_on_gpus_by_its_first_layer_without_a_kernel() {
    let config = llama().with(|c| {
        c.strategy = "single".into();
        c.precision.dtype = ElementType::F32;
        c.device = "cuda".into();
    });
    let (train, test) = data::load(&config).unwrap();
    let machine: Arc<dyn CudaMachine> = Shim::with(ShimOptions::default()).unwrap();
    let body = |comm: Communicator| {
        train_with(&config, &train, &test, &comm, Some(machine.clone()), &mut ()).map(drop)
    };
    let error = World::threads(1).run(body).unwrap_err().to_string();
    let says = "layer `model.layers.0.input_layernorm` has no GPU kernel; set device = \"cpu\"";
    assert!(error.contains(says), "{error}");
}
