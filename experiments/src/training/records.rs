//! The records of a run.

use super::profile::{LayerTime, by_layer};
use super::trained::Trained;
use allfold_report::records::{
    EpochScores, MeasuredEnd, MeasuredStep, RankMemory, Setup, SimulatedEnd, SimulatedStep, WaitingFor,
};
use allfold_trainer::{Config, EpochReport};
use std::collections::BTreeMap;

/// The memory of a rank as a record.
pub fn held(memory: allfold_trainer::MemoryUse) -> RankMemory {
    let allfold_trainer::MemoryUse {
        params,
        gradients,
        buffers,
        activations,
        saved_for_backward,
        activation_gradients,
        optimiser,
        buckets,
    } = memory;
    RankMemory {
        params,
        gradients,
        buffers,
        activations,
        saved_for_backward,
        activation_gradients,
        optimiser,
        buckets,
    }
}

/// The sizes of the mesh's axes, by name.
fn mesh(config: &Config, ranks: u32) -> BTreeMap<String, u32> {
    // The run has checked its mesh already, so there is no error here.
    let axes = allfold_trainer::strategies::axes(config, ranks).unwrap_or_default();
    axes.into_iter().map(|(name, size)| (name.to_string(), size)).collect()
}

/// The setup of a run on `ranks` ranks, each on a device of this name.
pub fn setup(config: &Config, backend: &str, device: &str, ranks: u32) -> Setup {
    Setup {
        backend: backend.into(),
        device: device.into(),
        model: config.model.name.clone(),
        strategy: config.strategy.clone(),
        ranks,
        mesh: mesh(config, ranks),
    }
}

impl Trained {
    /// The setup of the run.
    pub fn setup(&self, config: &Config, backend: &str) -> Setup {
        setup(config, backend, &self.device, self.ranks)
    }

    /// The scores of the epoch that ends with this step, if one does.
    fn scores_after(&self, step: u64, config: &Config) -> Option<EpochScores> {
        let epochs = &self.result.epochs;
        let at = epochs.binary_search_by_key(&(step + 1), |epoch| epoch.steps).ok()?;
        let EpochReport { epoch, loss, test, train, .. } = epochs[at];
        Some(EpochScores {
            epoch,
            loss,
            scored_on: config.scored_on().into(),
            accuracy: test.accuracy(),
            score_loss: test.loss,
            train_accuracy: train.map(|train| train.accuracy()),
            train_loss: train.map(|train| train.loss),
        })
    }

    /// The number of epochs after which the run ended early, if it did.
    pub fn ended_early_after(&self) -> Option<u64> {
        let last = self.result.epochs.last().filter(|_| self.result.ended_early)?;
        Some(last.epoch + 1)
    }
}

impl Trained {
    /// A record for each layer of a profiled run, made by `record` from the setup, the number of profiled steps and the times.
    pub fn layers<R>(
        &self,
        config: &Config,
        backend: &str,
        record: impl Fn(Setup, u64, LayerTime) -> R,
    ) -> Vec<R> {
        let steps = self.profiles.first().map_or(0, |rank| rank.steps.len() as u64);
        let layers = by_layer(&self.profiles).into_iter();
        layers.map(|layer| record(self.setup(config, backend), steps, layer)).collect()
    }
}

/// The records of a run, measured or simulated: two types with the same fields.
macro_rules! records {
    ($(#[$doc:meta])* $name:ident, $step:ident, $end:ident, $backend:literal) => {
        impl Trained {
            $(#[$doc])*
            pub fn $name(&self, config: &Config) -> Vec<$step> {
                let steps = self.result.losses.len();
                let end = $end {
                    accuracy: self.result.test.accuracy(),
                    ended_early_after: self.ended_early_after(),
                    samples_per_s: self.throughput(),
                    steady_samples_per_s: self.on_gpus.then(|| self.steady_throughput()),
                    exchange: self.result.exchange.clone(),
                    warmup_steps: self.warmup() as u64,
                    time_us: self.step_us().0,
                    breakdown: self.breakdown(),
                    memory: self.memory().map(held),
                    losses_hash: self.losses_hash(),
                    weights_hash: self.weights_hash(),
                };
                let record = |(step, &loss)| $step {
                    setup: self.setup(config, $backend),
                    step,
                    loss,
                    lr: self.lr(step),
                    buckets: self.buckets(step),
                    waiting_for: self.waiting.of(step).map(<[WaitingFor]>::to_vec),
                    scores: self.scores_after(step, config),
                    end: (step + 1 == steps as u64).then(|| end.clone()),
                };
                (0u64..).zip(&self.result.losses).map(record).collect()
            }
        }
    };
}

records! {
    /// A record per step of a run on threads.
    measured, MeasuredStep, MeasuredEnd, "threads"
}
records! {
    /// A record per step of a run of processes that communicate over TCP.
    measured_over_tcp, MeasuredStep, MeasuredEnd, "tcp"
}
records! {
    /// A record per step of a run of processes of an MPI job.
    measured_over_mpi, MeasuredStep, MeasuredEnd, "mpi"
}
records! {
    /// A record per step of a run on virtual time.
    simulated, SimulatedStep, SimulatedEnd, "sim"
}
