//! The records of a run.

use super::profile::{LayerTime, by_layer};
use super::trained::{RankStep, Trained};
use allfold_report::records::{
    BucketLife, EpochScores, LayerPasses, RankMemory, Setup, TrainingEnd, TrainingStep, WaitingFor,
};
use allfold_trainer::{Config, EpochReport, TrainResult};
use std::collections::BTreeMap;
use std::ops::Range;

/// The memory of a rank as a record.
pub fn held(memory: allfold_trainer::MemoryUse) -> RankMemory {
    RankMemory {
        params: memory.params,
        gradients: memory.gradients,
        buffers: memory.buffers,
        activations: memory.activations,
        saved_for_backward: memory.saved_for_backward,
        activation_gradients: memory.activation_gradients,
        optimiser: memory.optimiser,
        buckets: memory.buckets,
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

    /// The number of epochs after which the run ended early, if it did.
    pub fn ended_early_after(&self) -> Option<u64> {
        let last = self.result.epochs.last().filter(|_| self.result.ended_early)?;
        Some(last.epoch + 1)
    }
}

/// What a run has recorded so far.
pub struct SoFar<'a> {
    /// The configuration of the run.
    pub config: &'a Config,
    /// The losses and the scores of all ranks.
    pub result: &'a TrainResult,
    /// The steps of rank 0 that this process made: of a resumed run, the last ones.
    pub made: &'a [RankStep],
    /// How long each rank waited for each other one in a step, where this is known.
    pub waiting: &'a dyn Fn(u64) -> Option<Vec<WaitingFor>>,
}

impl SoFar<'_> {
    /// A step on rank 0; `None` if this process did not make it.
    fn step(&self, step: u64) -> Option<&RankStep> {
        let first = self.result.losses.len() - self.made.len();
        self.made.get(usize::try_from(step).ok()?.checked_sub(first)?)
    }

    /// The times of the buckets in a step, if these were kept.
    fn buckets(&self, step: u64) -> Vec<BucketLife> {
        self.step(step).map(RankStep::bucket_lives).unwrap_or_default()
    }

    /// The scores of the epoch that ends with this step, if one does.
    fn scores_after(&self, step: u64) -> Option<EpochScores> {
        let epochs = &self.result.epochs;
        let at = epochs.binary_search_by_key(&(step + 1), |epoch| epoch.steps).ok()?;
        let EpochReport { epoch, loss, test, train, .. } = epochs[at];
        Some(EpochScores {
            epoch,
            loss,
            scored_on: self.config.scored_on().into(),
            accuracy: test.accuracy(),
            score_loss: test.loss,
            train_accuracy: train.map(|train| train.accuracy()),
            train_loss: train.map(|train| train.loss),
        })
    }

    /// The records of steps, with the end of the run in that of its last step.
    pub fn records<const MEASURED: bool>(
        &self,
        setup: &Setup,
        steps: Range<usize>,
        end: Option<TrainingEnd>,
    ) -> Vec<TrainingStep<MEASURED>> {
        let (losses, first) = (&self.result.losses, steps.start as u64);
        let record = |(step, &loss)| TrainingStep {
            setup: setup.clone(),
            step,
            loss,
            lr: self.step(step).map(|step| step.lr),
            buckets: self.buckets(step),
            waiting_for: (self.waiting)(step),
            scores: self.scores_after(step),
            end: end.clone().filter(|_| step + 1 == losses.len() as u64),
        };
        (first..).zip(&losses[steps]).map(record).collect()
    }
}

impl Trained {
    /// A record for each layer of a profiled run.
    pub fn layers<const MEASURED: bool>(&self, config: &Config, backend: &str) -> Vec<LayerPasses<MEASURED>> {
        let steps = self.profiles.first().map_or(0, |rank| rank.steps.len() as u64);
        let record = |LayerTime { name: layer, us: [forward_us, input_grad_us, weight_grad_us] }| {
            let setup = self.setup(config, backend);
            LayerPasses { setup, layer, steps, forward_us, input_grad_us, weight_grad_us }
        };
        by_layer(&self.profiles).into_iter().map(record).collect()
    }

    /// The records of the steps from number `first` on, with the end of the run in the last one.
    pub fn records<const MEASURED: bool>(
        &self,
        config: &Config,
        backend: &str,
        first: usize,
    ) -> Vec<TrainingStep<MEASURED>> {
        let end = TrainingEnd {
            accuracy: self.result.test.accuracy(),
            ended_early_after: self.ended_early_after(),
            batch: Some(self.batch as u64),
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
        let waiting = |step| self.waiting.of(step).map(<[WaitingFor]>::to_vec);
        let (result, made) = (&self.result, &self.steps[0][..]);
        let so_far = SoFar { config, result, made, waiting: &waiting };
        so_far.records(&self.setup(config, backend), first..result.losses.len(), Some(end))
    }
}
