//! A training run: epochs of steps, an evaluation after each epoch, and the result.
//!
//! ```text
//! epoch:  sampler -> [ gather batch -> forward -> backward + exchange -> optimiser ]*  -> evaluate
//! ```

mod checkpointing;
mod consensus;
mod device;
mod engine;
mod hook_scale;
mod report;

pub use engine::fits_network;
pub use report::{EpochReport, Observer, StepReport, TrainResult};

use crate::cuda::{self, CudaMachine, Replica};
use crate::data::Augment;
use crate::data::loader::{self, Batches, Loading};
use crate::scaler::unscale_cost;
use crate::strategies::{self, Strategy};
use crate::timing::{StepBreakdown, work};
use crate::{
    Batch, Config, Dataset, DrawKey, Error, GradScaler, LrSchedule, Model, Objective, Optimiser, Result,
    Sampler, data, models, optim,
};
use allfold_collectives::Communicator;
use allfold_kernels::nn::{Float, OpCost, ThreadPool};
use engine::{DataPlace, EngineRun};
use std::path::Path;
use std::sync::Arc;

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
    train_with(config, train, test, comm, cuda::open(config)?, observer)
}

/// [`train_on`] on a given machine of GPUs: the tests' shim, or one that is open already. `None` means the CPU.
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
    config.check()?;
    if train.shape != test.shape || train.classes != test.classes {
        return Err(Error::Data("the training and the test set differ in shape or classes".into()));
    }
    ThreadPool::new(config.threads).enter(|| match config.dtype.as_str() {
        "f64" => Run::<f64>::new(config, (train, test), comm, machine)?.all(observer),
        _ => Run::<f32>::new(config, (train, test), comm, machine)?.all(observer),
    })
}

/// A run under way.
struct Run<'a, F: Float> {
    config: &'a Config,
    train: &'a Dataset,
    test: &'a Dataset,
    comm: &'a Communicator,
    sampler: Sampler,
    model: Model<F>,
    optimiser: Box<dyn Optimiser<F>>,
    scaler: Option<GradScaler>,
    strategy: Box<dyn Strategy<F> + 'a>,
    batch: Batch<F>,
    /// The layer that [`Model::first_not_finite`] named after the first micro-batch of the step with a loss that is not finite.
    not_finite: Option<String>,
    /// The model on a GPU, if the run is on GPUs; the host's model is then a copy as of the last download.
    device: Option<Replica<'a>>,
    /// The units are there, where the strategy is the engine's; on the host there is a model in evaluations and checkpoints alone.
    engine: Option<EngineRun<'a, F>>,
    /// This rank's place among those with samples of their own.
    data: DataPlace,
}

impl<'a, F: Float> Run<'a, F> {
    fn new(
        config: &'a Config,
        (train, test): (&'a Dataset, &'a Dataset),
        comm: &'a Communicator,
        machine: Option<Arc<dyn CudaMachine>>,
    ) -> Result<Self> {
        let network = models::build(config, train.shape, train.classes)?;
        if network.rows() != train.rows() && !train.is_empty() {
            return Err(Error::Data(format!(
                "`{}` gives {} rows of logits per sample and the data has {} labels; a gpt needs text, the others pictures",
                config.model,
                network.rows(),
                train.rows()
            )));
        }
        let device = machine.map(|machine| {
            let device = cuda::device_of(comm, &*machine)?;
            Replica::new(config, (train.shape, train.classes), comm, (machine, device))
        });
        let device = device.transpose()?;
        if config.channels_last && device.is_none() {
            let what = "`channels_last` is for device \"cuda\"; the CPU lays pictures out as it needs them";
            return Err(Error::Config(what.into()));
        }
        let strategy = strategies::build(config, &network, comm)?;
        let data = DataPlace::of(config, comm)?;
        let engine = match strategies::on_engine(config) {
            true => {
                let network = models::build(config, train.shape, train.classes)?;
                Some(EngineRun::new(config, network, comm)?)
            }
            false => None,
        };
        let optimiser = optim::build(config, network.params())?;
        let mut model = Model::new(network, config.seed)?;
        if !config.weights.is_empty() {
            crate::weights::load(Path::new(&config.weights), &mut model)?;
        }
        if let Some(narrow) = config.narrow() {
            model.autocast(narrow);
        }
        Ok(Run {
            sampler: Sampler::of(config, train.len(), data.place.size as u32),
            data,
            engine,
            optimiser,
            scaler: config.scaler(),
            model,
            strategy,
            batch: Batch::default(),
            not_finite: None,
            device,
            config,
            train,
            test,
            comm,
        })
    }

    fn all(mut self, observer: &mut dyn Observer) -> Result<TrainResult> {
        self.strategy.start(&mut self.model)?;
        let per_epoch = self.sampler.steps(self.config);
        let steps = self.sampler.run_steps(self.config);
        if steps == 0 {
            return Err(self.sampler.no_step());
        }
        let schedule = LrSchedule::new(self.config, steps, self.data.place.size as u32);
        let mut result = TrainResult::empty(self.model.params.len());
        self.resume(&mut result.losses, steps)?;
        let done = result.losses.len() as u64;
        if done > 0 && done < steps && done.is_multiple_of(per_epoch) {
            // The evaluation that this run is not going to make again left all ranks with the same numbers.
            self.strategy.before_evaluation(&mut self.model)?;
        }
        self.upload()?;
        if let Some(engine) = &mut self.engine {
            engine.observe(observer.wants_spans());
        }
        // Losses up to here are means over ranks already.
        let mut shared = result.losses.len();
        // A run that is resumed after its last step still evaluates.
        let epoch = done.min(steps - 1) / per_epoch;
        for epoch in epoch..self.config.epochs {
            let first = epoch * per_epoch;
            let skip = (result.losses.len() as u64 - first) as usize;
            let left = (steps - result.losses.len() as u64).min(per_epoch - skip as u64) as usize;
            let chunks: Vec<Vec<usize>> =
                self.epoch(epoch, per_epoch as usize).into_iter().skip(skip).take(left).collect();
            let (dataset, Config { workers, prefetch, .. }) = (self.train, self.config);
            let augment = Augment::new(self.config, dataset.shape, epoch)?;
            let loading = Loading { dataset, augment, workers: *workers, prefetch: *prefetch };
            loader::batches(loading, &chunks, |batches| {
                for _ in &chunks {
                    let step = result.losses.len() as u64;
                    self.model.draw_key = self.draw_key(step);
                    let scale = self.scaler.map(|scaler| scaler.scale);
                    let left = self.steps_until_meeting(step, per_epoch, steps);
                    let (loss, time) = self.step(batches, schedule.at(step), left)?;
                    self.after_scaled(scale);
                    result.losses.push(loss);
                    result.samples += self.sampler.in_step(self.config, step % per_epoch);
                    result.breakdown += time;
                    self.report_step((epoch, step, steps), (loss, schedule.at(step), time), observer);
                    self.finite(&result.losses)?;
                    if self.checkpoint_due(step + 1, steps) {
                        self.share(&mut result.losses, &mut shared)?;
                        self.checkpoint(&result.losses)?;
                    }
                }
                Ok::<_, Error>(())
            })?;
            self.share(&mut result.losses, &mut shared)?;
            let losses = &result.losses[first as usize..];
            let loss = losses.iter().sum::<f64>() / losses.len().max(1) as f64;
            if self.engine.is_none() {
                self.download()?;
                self.strategy.before_evaluation(&mut self.model)?;
                self.upload()?;
            }
            let done = result.losses.len() as u64;
            result.test = self.evaluate(done)?;
            observer.epoch(&EpochReport { epoch, steps: done, loss, test: result.test });
            if done == steps {
                break;
            }
        }
        result.time = result.breakdown.total();
        result.buckets =
            self.engine.as_ref().map_or_else(|| self.strategy.buckets(), EngineRun::log).to_vec();
        self.download_units()?;
        result.weights_hash = self.same_weights()?;
        Ok(result)
    }

    /// The key of the random draws of a step.
    fn draw_key(&self, step: u64) -> DrawKey {
        DrawKey { seed: self.config.seed, step: step as u32, micro: 0, rank: self.data.draws }
    }

    /// Steps from `step` on, this one included, until all ranks meet: for an evaluation or a checkpoint.
    fn steps_until_meeting(&self, step: u64, per_epoch: u64, steps: u64) -> u64 {
        let meets = |done: &u64| done.is_multiple_of(per_epoch) || self.checkpoint_due(*done, steps);
        (step + 1..steps).find(meets).unwrap_or(steps) - step
    }

    /// One step over the next batch at the learning rate `lr`, the first of `left` until all ranks meet. Returns the loss and the
    /// time by parts.
    fn step(&mut self, batches: &mut Batches<F>, lr: f64, left: u64) -> Result<(f64, StepBreakdown)> {
        if let Some(done) = self.device_step(batches, lr)? {
            return Ok(done);
        }
        if let Some(done) = self.engine_step(batches, lr, left)? {
            return Ok(done);
        }
        let comm = self.comm;
        let start = comm.now();
        batches.next(&mut self.batch)?;
        comm.charge(&work(data_cost::<F>(self.batch.x.len())));
        let mut time = StepBreakdown { data: comm.now() - start, ..StepBreakdown::default() };
        let loss = self.gradients(&mut time)?;
        let backward = comm.now();
        self.update(lr)?;
        time.optimiser = comm.now() - backward;
        Ok((loss, time))
    }

    /// Tells `observer` of a step: its epoch, its number and that of all steps; its loss, learning rate and time.
    fn report_step(
        &mut self,
        (epoch, step, steps): (u64, u64, u64),
        (loss, lr, time): (f64, f64, StepBreakdown),
        observer: &mut dyn Observer,
    ) {
        let memory = self.memory();
        let (buckets, spans, peak) = match &self.engine {
            Some(engine) => (engine.log(), engine.spans(), engine.peak().unwrap_or(memory)),
            None => (self.strategy.buckets(), &[][..], memory),
        };
        observer.step(&StepReport { epoch, step, steps, loss, time, lr, memory, buckets, peak, spans });
    }

    /// This rank's samples in each step of an epoch. If ranks are uneven, a rank has none in the steps that others still take.
    fn epoch(&self, epoch: u64, steps: usize) -> Vec<Vec<usize>> {
        let chunks_of = |rank: usize| -> Vec<Vec<usize>> {
            let indices = match self.config.uneven {
                true => self.sampler.own(rank, epoch),
                false => self.sampler.indices(rank, epoch),
            };
            indices.chunks(self.config.batch).map(<[usize]>::to_vec).collect()
        };
        let mut chunks = chunks_of(self.data.place.index);
        if self.data.takes_all {
            for rank in 1..self.data.place.size {
                chunks.iter_mut().zip(chunks_of(rank)).for_each(|(all, theirs)| all.extend(theirs));
            }
        }
        if self.data.takes_none {
            chunks.clear();
        }
        chunks.resize(steps, Vec::new());
        chunks
    }

    /// Moves the parameters by the gradients, unless a loss scale made one of them overflow.
    fn update(&mut self, lr: f64) -> Result<()> {
        let elements = self.model.params.len();
        if let Some(scaler) = &mut self.scaler {
            let found = scaler.unscale(&mut self.model.grads);
            self.comm.charge(&work(unscale_cost::<F>(elements)));
            let found = GradScaler::found_anywhere(found, self.comm)?;
            scaler.update(found);
            if found {
                return Ok(());
            }
        }
        if self.config.clip_norm > 0.0 {
            optim::clip::clip(&mut self.model.grads, self.config.clip_norm);
            self.comm.charge(&work(optim::clip::cost::<F>(elements)));
        }
        let kept = self.model.kept(self.strategy.unused());
        self.optimiser.step(lr, &mut self.model.params, &self.model.grads);
        self.model.restore(kept);
        self.strategy.after_step(&mut self.model)?;
        self.comm.charge(&work(self.optimiser.cost(elements)));
        Ok(())
    }

    /// Forward and backward over the gathered batch, one micro-batch after another; returns the loss of the whole.
    fn gradients(&mut self, time: &mut StepBreakdown) -> Result<f64> {
        let (comm, inputs) = (self.comm, self.model.network().inputs());
        let Batch { x, labels } = &self.batch;
        let rows = self.model.network().rows();
        let size = self.config.micro_batch(labels.len() / rows);
        // Ranks must agree on the number of micro-batches, even if a rank has no samples for some of them.
        let count =
            if self.config.uneven { self.config.accumulate } else { labels.len().div_ceil(size * rows) };
        let part = |all: usize, micro: usize| (micro * size).min(all)..((micro + 1) * size).min(all);
        let loss_scale = self.scaler.map_or(1.0, |scaler| f64::from(scaler.scale));
        let (samples, mut loss) = (labels.len() / rows, 0.0);
        self.not_finite = None;
        for micro in 0..count {
            let part = part(samples, micro);
            let x = &x[part.start * inputs..part.end * inputs];
            let share = part.len() as f64 / samples.max(1) as f64;
            let labels = &labels[part.start * rows..part.end * rows];
            let objective =
                Objective { labels, scale: F::from_f64(share * loss_scale), more: micro + 1 < count };
            let start = comm.now();
            self.model.draw_key.micro += 1;
            let waited = self.strategy.forward(&mut self.model, x)?;
            let forward = comm.now();
            let synced = self.strategy.backward(&mut self.model, objective)?;
            loss += share * synced.loss.to_f64();
            if !loss.is_finite() && self.not_finite.is_none() {
                self.not_finite = self.model.first_not_finite().map(String::from);
            }
            time.forward += forward - start - waited;
            time.backward += comm.now() - forward - synced.exposed;
            time.exposed += waited + synced.exposed;
        }
        Ok(loss)
    }
}

/// Cost of copying `elements` of a batch.
pub(crate) fn data_cost<F>(elements: usize) -> OpCost {
    OpCost::launch(0, 2 * elements, size_of::<F>())
}

#[cfg(test)]
mod tests;
