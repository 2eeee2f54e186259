//! The rank that a run trains with, on the device that its configuration names; and what is checked before there is one.

#[cfg(feature = "cuda")]
use super::gpu_rank;
use super::rank_trainer::RankTrainer;
use super::training_rank::TrainingRank;
use super::{Observer, Run};
use crate::cuda::{self, CudaMachine};
use crate::engine::NetworkSplit;
use crate::strategies::{self, ddp};
use crate::{Config, Error, Result, SampleForm, models};
use allfold_collectives::Communicator;
use allfold_config::RankDevice;
use allfold_kernels::nn::Float;
use std::sync::Arc;

/// The GPUs of this machine, if `config` lets this rank compute on one.
pub(super) fn machine(config: &Config, comm: &Communicator) -> Result<Option<Arc<dyn CudaMachine>>> {
    match config.device_of(comm.rank().index())? {
        RankDevice::Cpu => Ok(None),
        RankDevice::Cuda(_) => cuda::open(config),
    }
}

/// This rank, without weights yet: on a device of `machine`, or on the CPU if there is none, or if this rank is one of those that
/// compute on the CPU beside others on GPUs. Every rank must call it.
pub(super) fn rank<'a, F: Float>(
    config: &'a Config,
    samples: SampleForm,
    comm: &'a Communicator,
    machine: Option<Arc<dyn CudaMachine>>,
) -> Result<Box<dyn TrainingRank<F> + 'a>> {
    let here = !config.mixes_devices() || config.device_of(comm.rank().index())? != RankDevice::Cpu;
    match machine.filter(|_| here) {
        #[cfg(feature = "cuda")]
        Some(machine) => Ok(Box::new(gpu_rank::replica(config, samples, comm, machine)?)),
        _ if config.channels_last => {
            let what = "`channels_last` is for device \"cuda\"; the CPU lays pictures out as it needs them";
            Err(Error::Config(what.into()))
        }
        _ => Ok(Box::new(RankTrainer::new(config, models::build(config, samples)?, comm)?)),
    }
}

impl<F: Float> Run<'_, F> {
    /// The path by which ranks on GPUs sum gradients, and why, which rank 0 notes; `None` on CPUs and for a single rank.
    pub(super) fn exchange(&self, observer: &mut dyn Observer) -> Option<String> {
        let exchange = self.state.rank.exchange()?;
        if self.comm.rank().0 == 0 {
            observer.note(&format!("gradients are summed by {exchange}"));
        }
        Some(exchange)
    }
}

/// Checks that the strategy of `config` can train its network, for samples of `shape` with `classes` classes, on `ranks` ranks.
/// Makes no weights and starts no run.
///
/// # Errors
/// What [`strategies::fits`] refuses, and a network that cannot be shared or cut as the strategy needs it.
pub fn fits_network(config: &Config, ranks: u32, samples: SampleForm) -> Result<()> {
    strategies::fits(config, ranks)?;
    for rank in [0, ranks as usize - 1] {
        let plan = strategies::plan(config, rank, ranks)?;
        let network = models::build::<f32>(config, samples)?;
        ddp::fits_network(config, &network)?;
        let (network, _) = NetworkSplit::of(network, &plan.mesh, rank, config.parallel.sequence_parallel)?;
        plan.driver.units(&network.outline())?;
    }
    Ok(())
}
