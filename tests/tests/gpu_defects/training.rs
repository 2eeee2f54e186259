//! Defects of training on devices whose sums use NCCL, on the shim and over the stand-in for NCCL's library.

use crate::{Found, Seeded, of_all};
use allfold_collectives::{Rank, World};
use allfold_cuda::CudaMachine;
use allfold_gpu::nccl::{PeerLoss, StandIn, stand_in};
use allfold_standin::{Shim, ShimOptions};
use allfold_trainer::config::GpuExchange;
use allfold_trainer::cuda::{Replica, Within};
use allfold_trainer::data::digits;
use allfold_trainer::engine::StepInput;
use allfold_trainer::{Batch, Config, DrawKey, Model, SampleForm, models, optim, train_with};
use std::sync::Arc;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(10);

fn config() -> Config {
    Config::default().with(|c| {
        c.model.name = "mlp".into();
        c.exchange = GpuExchange::Nccl;
        c.model.hidden = vec![16];
        c.training.batch = 4;
        c.training.epochs = 2;
        c.optimiser.lr = 0.1;
    })
}

fn machine(seeded: Seeded, timeout: Duration) -> Arc<dyn CudaMachine> {
    Shim::with(ShimOptions { devices: 2, seeded, timeout, ..ShimOptions::default() }).unwrap()
}

fn train(config: &Config, seeded: Seeded) -> Found {
    let (train, test) = digits().unwrap();
    let data = (train.first(32), test.first(12));
    let machine = machine(seeded, Duration::from_secs(20));
    let world = World::threads(2).deadline(Duration::from_secs(20));
    let trained =
        world.run_each(|comm| train_with(config, &data.0, &data.1, &comm, Some(machine.clone()), &mut ()));
    of_all(trained).map(|_| ())
}

/// Runs a step: its number, the number of this rank's samples, and that of all ranks' samples.
type Step<'a> = &'a mut dyn FnMut(u32, u32, u64) -> allfold_trainer::Result<()>;

/// Two ranks with a device each that train step by step.
fn steps<R: Send>(
    config: &Config,
    machine: &Arc<dyn CudaMachine>,
    body: impl Fn(Rank, Step<'_>) -> allfold_trainer::Result<R> + Sync,
) -> Result<Vec<R>, String> {
    let ended = World::threads(2).deadline(DEADLINE).run_each(|comm| {
        let within = Within { machine: machine.clone(), device: comm.rank().index(), deadline: DEADLINE };
        let mut replica = Replica::new(config, SampleForm::new((1, 8, 8), 10), &comm, within)?;
        let network = models::build::<f32>(config, SampleForm::new((1, 8, 8), 10))?;
        let mut optimiser = optim::build(config, network.params())?;
        let start = Model::new(network, 1)?;
        replica.upload(&start.params, &start.buffers, &mut *optimiser)?;
        let mut step = |at: u32, own: u32, everywhere: u64| {
            let labels = (0..own).map(|i| (i + at) % 10).collect();
            replica.stage(&Batch { x: vec![0.5; own as usize * 64], labels })?;
            let draw_key = DrawKey { step: at, ..DrawKey::default() };
            let input = StepInput { draw_key, lr: 0.1, ..StepInput::default() };
            let samples = replica.start(input, everywhere, false)?;
            replica.finish(samples).map(|_| ())
        };
        body(comm.rank(), &mut step)
    });
    of_all(ended)
}

/// Rank 1 stops silently after four steps: by its deadline rank 0 must get an error that names rank 1.
pub fn d5_lost_peer(seeded: Seeded) -> Found {
    let machine = machine(seeded, Duration::from_secs(15));
    stand_in(&machine, StandIn { lost: PeerLoss::Silent, ..StandIn::default() });
    let ends = steps(&config(), &machine, |rank, step| {
        (0..4).try_for_each(|at| step(at, 4, 8))?;
        let mut later = (4..7).filter(|_| rank == Rank(0));
        Ok(later.find_map(|at| step(at, 4, 8).err().map(|error| error.to_string())))
    });
    match ends?.remove(0) {
        Some(error) if error.contains("rank 1") => Ok(()),
        other => Err(format!("rank 0 was told {other:?}")),
    }
}

/// Weights are averaged every second step, and nothing else is exchanged.
pub fn d6_local_sgd(seeded: Seeded) -> Found {
    train(
        &config().with(|c| {
            c.ddp.hook = "local_sgd".into();
            c.ddp.local_steps = 2;
        }),
        seeded,
    )
}

/// Rank 1 has 3 samples in every second step, and rank 0 has 4 in each.
pub fn d19_uneven(seeded: Seeded) -> Found {
    let config = config().with(|c| c.data.uneven = true);
    let ends = steps(&config, &machine(seeded, Duration::from_secs(20)), |rank, step| {
        (0..8).try_for_each(|at| {
            let short = at % 2;
            step(at, 4 - short * rank.0, u64::from(8 - short))
        })
    });
    ends.map(|_| ())
}
