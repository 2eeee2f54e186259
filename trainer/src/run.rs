//! A training run: epochs of steps, an evaluation after each epoch, and the result.
//!
//! ```text
//! epoch:  sampler -> [ gather batch -> forward -> backward + exchange -> optimiser ]*  -> evaluate
//! ```

mod checkpointing;
mod consensus;
mod data_place;
mod epoch_end;
mod epochs;
#[cfg(feature = "cuda")]
mod gpu_rank;
mod rank;
mod rank_trainer;
mod report;
mod training_rank;

pub use data_place::samples_of_rank;
pub use rank::fits_network;
pub use rank_trainer::RankTrainer;
pub use report::{Observer, StepReport, TrainResult};

use crate::checkpoint::TrainedOn;
use crate::cuda::CudaMachine;
use crate::data::loader::{self, Loading};
use crate::unknown::counted;
use crate::{
    Batch, Config, Dataset, Error, GradScaler, Model, Result, Sampler, data, models, optim, strategies,
    weights,
};
use allfold_collectives::Communicator;
use allfold_config::{DataConfig, ElementType};
use allfold_kernels::nn::{Float, ThreadPool};
use checkpointing::{Held, RunState};
use consensus::{begin_alike, same_config, same_data};
use data_place::DataPlace;
use epochs::Progress;
use report::Line;
use std::sync::Arc;
use training_rank::Host;

/// Trains on the data that `config` names (the digits that ship with the project, if no other), on all ranks of `comm`.
///
/// # Errors
/// A configuration that makes no sense, data that is missing or damaged, replicas that differ, or failed communication.
pub fn train(config: &Config, comm: &Communicator, observer: &mut dyn Observer) -> Result<TrainResult> {
    let (train, test) = data::load(config)?;
    train_on(config, &train, &test, comm, observer)
}

/// [`train`] on any dataset.
///
/// # Errors
/// As [`train`].
pub fn train_on(
    config: &Config,
    train: &Dataset,
    test: &Dataset,
    comm: &Communicator,
    observer: &mut dyn Observer,
) -> Result<TrainResult> {
    crate::config::check(config)?;
    train_with(config, train, test, comm, rank::machine(config, comm)?, observer)
}

/// [`train_on`] on a given machine of GPUs: the tests' shim, or one that is open already. `None` means the CPU. If `config` gives
/// some ranks the CPU and others GPUs, the ranks on the CPU ignore `machine`.
///
/// # Errors
/// As [`train`].
pub fn train_with(
    config: &Config,
    train: &Dataset,
    test: &Dataset,
    comm: &Communicator,
    machine: Option<Arc<dyn CudaMachine>>,
    observer: &mut dyn Observer,
) -> Result<TrainResult> {
    crate::config::check(config)?;
    if train.shape != test.shape || train.classes != test.classes {
        return Err(Error::Data("the training and the test set differ in shape or classes".into()));
    }
    ThreadPool::new(config.threads).enter(|| match config.precision.dtype {
        ElementType::F64 => Run::<f64>::new(config, (train, test), comm, machine)?.all(observer),
        ElementType::F32 => Run::<f32>::new(config, (train, test), comm, machine)?.all(observer),
    })
}

/// A run under way.
struct Run<'a, F: Float> {
    config: &'a Config,
    train: &'a Dataset,
    test: &'a Dataset,
    comm: &'a Communicator,
    sampler: Sampler,
    state: RunState<'a, F>,
    batch: Batch<F>,
    /// The first layer with an output that is not finite, if the last step had a loss that is not.
    not_finite: Option<String>,
    /// This rank's position among the ranks with samples of their own.
    data: DataPlace,
    /// What a user should know before the first step.
    note: Option<String>,
}

impl<'a, F: Float> Run<'a, F> {
    fn new(
        config: &'a Config,
        (train, test): (&'a Dataset, &'a Dataset),
        comm: &'a Communicator,
        machine: Option<Arc<dyn CudaMachine>>,
    ) -> Result<Self> {
        same_config(comm, config)?;
        let network = models::build(config, train.form())?;
        if network.rows() != train.rows() && !train.is_empty() {
            return Err(Error::Data(format!(
                "`{}` gives {} of logits per sample and the data has {}; a gpt needs one for each position, the others one for each sample",
                config.model.name,
                counted(network.rows(), "row"),
                counted(train.rows(), "label")
            )));
        }
        strategies::fits(config, comm.size())?;
        let data = DataPlace::of(config, comm)?;
        let rank = rank::rank(config, train.form(), comm, machine)?;
        let optimiser = optim::build(config, network.params())?;
        // The other ranks get rank 0's weights before the first step.
        let mut model = match comm.rank().0 {
            0 => Model::new(network, config.seed)?,
            _ => Model::zeros(network)?,
        };
        let note = weights::initial(config, &mut model)?;
        if let Some(narrow) = models::narrow(config.precision.amp) {
            model.autocast(narrow);
        }
        Ok(Run {
            sampler: Sampler::of(config, train.len(), data.place.size as u32),
            data,
            state: RunState {
                config,
                comm,
                host: Host { model, optimiser },
                rank,
                scaler: GradScaler::of(&config.precision),
                held: Held::default(),
                trained_on: TrainedOn::of(config, train),
            },
            batch: Batch::default(),
            not_finite: None,
            config,
            train,
            test,
            comm,
            note,
        })
    }

    fn all(mut self, observer: &mut dyn Observer) -> Result<TrainResult> {
        same_data(self.comm, [self.train, self.test])?;
        tracing::debug!(rank = self.comm.rank().0, "has {} samples to train on", self.train.len());
        begin_alike(self.comm, &mut self.state.host.model)?;
        if let Some(note) = self.note.take().filter(|_| self.comm.rank().0 == 0) {
            observer.note(&note);
        }
        let per_epoch = self.sampler.steps(self.config);
        let steps = self.sampler.run_steps(self.config);
        self.sampler.check(self.config, self.state.host.model.network())?;
        self.can_score()?;
        let mut result = TrainResult::empty(self.state.host.model.params.len());
        result.exchange = self.exchange(observer);
        let line = Line::default();
        let mut progress = Progress { result, shared: 0, per_epoch, steps, stop: None, line };
        self.state.held = self.state.resume(&mut progress)?;
        // The losses of a checkpoint are means over ranks already.
        progress.shared = progress.result.losses.len();
        progress.line.at = self.comm.now();
        if progress.shared > 0 {
            observer.losses(0, &progress.result);
        }
        self.state.rank.upload(&mut self.state.host)?;
        self.state.rank.observe(observer.wants_spans());
        let chunks = self.chunks((progress.done(), steps, per_epoch))?;
        let DataConfig { workers, prefetch, .. } = self.config.data;
        let loading = Loading { dataset: self.train, workers, prefetch };
        let stopped = loader::batches(loading, chunks, |batches| {
            while let Some(epoch) = self.next_epoch(&mut progress) {
                if self.train_epoch(batches, epoch, &mut progress, observer)? {
                    return Ok(true);
                }
                self.end_epoch(epoch, &mut progress, observer)?;
            }
            Ok::<_, Error>(false)
        })?;
        if stopped {
            return Ok(progress.result);
        }
        let mut result = progress.result;
        let whole = result.epochs.iter().filter(|epoch| epoch.steps.is_multiple_of(per_epoch));
        result.whole_epochs = whole.count();
        if let Some(last) = result.epochs.last() {
            result.test = last.test;
        }
        result.time = result.breakdown.total();
        result.buckets = self.state.rank.records().buckets.to_vec();
        self.state.rank.download(&mut self.state.host)?;
        result.weights_hash = self.same_weights()?;
        Ok(result)
    }
}

#[cfg(test)]
mod tests;
