//! A training run: epochs of steps, an evaluation after each, and what came of it.
//!
//! ```text
//! epoch:  sampler -> [ gather batch -> forward -> backward + exchange -> optimiser ]*  -> evaluate
//! ```

use crate::evaluate::{Evaluation, evaluate};
use crate::strategies::{self, Strategy};
use crate::timing::{Breakdown, BucketTimes, work};
use crate::{
    Batch, Config, Dataset, Error, Model, Objective, Optimiser, Result, Sampler, Schedule, data, hash,
    models, optim,
};
use allfold_collectives::{Communicator, ReduceOp};
use allfold_kernels::nn::{Cost, Float};
use allfold_sim::Picos;

/// What just happened in a step, on this rank.
#[derive(Clone, Copy, Debug)]
pub struct StepReport {
    /// From 0.
    pub epoch: u64,
    /// From 0, over the whole run.
    pub step: u64,
    /// Steps in the whole run.
    pub steps: u64,
    /// The mean loss of this rank's samples.
    pub loss: f64,
    /// Where the time of this step went.
    pub time: Breakdown,
}

/// What came of an epoch, over all ranks.
#[derive(Clone, Copy, Debug)]
pub struct EpochReport {
    /// From 0.
    pub epoch: u64,
    /// The mean of the losses of its steps.
    pub loss: f64,
    /// On the test set.
    pub test: Evaluation,
}

/// Hears of a run's progress. `()` listens to nothing.
pub trait Observer {
    /// A step is done.
    fn step(&mut self, _report: &StepReport) {}
    /// An epoch is done and evaluated.
    fn epoch(&mut self, _report: &EpochReport) {}
}

impl Observer for () {}

/// What came of a run. Losses, evaluation and hash are the same on every rank; times are this rank's.
#[derive(Clone, Debug)]
pub struct TrainResult {
    /// The loss of each step, averaged over ranks.
    pub losses: Vec<f64>,
    /// On the test set, after the last epoch.
    pub test: Evaluation,
    /// The bits of all parameters and buffers in one number.
    pub weights_hash: u64,
    /// Elements of all parameters.
    pub parameters: usize,
    /// Training samples that all ranks together went through, repeated ones included.
    pub samples: u64,
    /// Time of all steps; evaluation is not part of it.
    pub time: Picos,
    /// The same by parts.
    pub breakdown: Breakdown,
    /// What happened to each bucket in the last step.
    pub buckets: Vec<BucketTimes>,
}

impl TrainResult {
    /// Samples per second, over all ranks; 0 where no time passed.
    pub fn throughput(&self) -> f64 {
        if self.time == Picos::ZERO { 0.0 } else { self.samples as f64 / self.time.as_secs() }
    }
}

/// Trains on the digits that ship with the project, as `config` says, on all ranks of `comm`.
///
/// # Errors
/// A configuration that makes no sense, replicas that differ, or failed communication.
pub fn train(config: &Config, comm: &Communicator, observer: &mut dyn Observer) -> Result<TrainResult> {
    let (train, test) = data::digits()?;
    train_on(config, train, &test, comm, observer)
}

/// Bytes that each rank will hold, about: see [`crate::Network::memory`]. For whoever wants to know before it starts.
///
/// # Errors
/// A configuration that makes no sense.
pub fn memory(config: &Config, shape: (usize, usize, usize), classes: usize) -> Result<u64> {
    fn of<F: Float>(config: &Config, shape: (usize, usize, usize), classes: usize) -> Result<u64> {
        let network = models::build::<F>(config, shape, classes)?;
        // Adam keeps one vector more than the velocity that the network counts, and so do micro-batches.
        let more = u64::from(config.optimiser.starts_with("adam")) + u64::from(config.accumulate > 1);
        let vector = (network.param_count() * size_of::<F>()) as u64;
        Ok(network.memory(config.micro_batch(config.batch)).saturating_add(more.saturating_mul(vector)))
    }
    config.check()?;
    match config.dtype.as_str() {
        "f64" => of::<f64>(config, shape, classes),
        _ => of::<f32>(config, shape, classes),
    }
}

/// As [`train`], on any dataset.
///
/// # Errors
/// As [`train`].
pub fn train_on(
    config: &Config,
    train: Dataset,
    test: &Dataset,
    comm: &Communicator,
    observer: &mut dyn Observer,
) -> Result<TrainResult> {
    config.check()?;
    let train = if config.train_samples > 0 { train.first(config.train_samples) } else { train };
    if train.shape != test.shape || train.classes != test.classes {
        return Err(Error::Data("the training and the test set differ in shape or classes".into()));
    }
    match config.dtype.as_str() {
        "f64" => Run::<f64>::new(config, &train, test, comm)?.all(observer),
        _ => Run::<f32>::new(config, &train, test, comm)?.all(observer),
    }
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
    strategy: Box<dyn Strategy<F> + 'a>,
    batch: Batch<F>,
}

impl<'a, F: Float> Run<'a, F> {
    fn new(
        config: &'a Config,
        train: &'a Dataset,
        test: &'a Dataset,
        comm: &'a Communicator,
    ) -> Result<Self> {
        let network = models::build(config, train.shape, train.classes)?;
        let strategy = strategies::build(config, &network, comm)?;
        let sampler = Sampler {
            samples: train.len(),
            world: comm.size() as usize,
            drop_last: config.drop_last,
            shuffle: config.shuffle.then_some(config.seed),
        };
        Ok(Run {
            sampler,
            optimiser: optim::build(config, &network)?,
            model: Model::new(network, config.seed)?,
            strategy,
            batch: Batch::default(),
            config,
            train,
            test,
            comm,
        })
    }

    fn all(mut self, observer: &mut dyn Observer) -> Result<TrainResult> {
        self.strategy.start(&mut self.model)?;
        let per_epoch = self.sampler.per_rank().div_ceil(self.config.batch) as u64;
        let limit = if self.config.max_steps == 0 { u64::MAX } else { self.config.max_steps };
        let steps = per_epoch.saturating_mul(self.config.epochs).min(limit);
        let schedule = Schedule::new(self.config, steps, self.comm.size());
        let mut result = TrainResult {
            losses: Vec::new(),
            test: Evaluation { samples: 0, correct: 0, loss: 0.0 },
            weights_hash: 0,
            parameters: self.model.params.len(),
            samples: 0,
            time: Picos::ZERO,
            breakdown: Breakdown::default(),
            buckets: Vec::new(),
        };
        for epoch in 0..self.config.epochs {
            let first = result.losses.len();
            let indices = self.sampler.indices(self.comm.rank().index(), epoch);
            for samples in indices.chunks(self.config.batch) {
                let step = result.losses.len() as u64;
                if step == steps {
                    break;
                }
                let (loss, time) = self.step(samples, schedule.at(step))?;
                result.losses.push(loss);
                result.samples += samples.len() as u64 * u64::from(self.comm.size());
                result.breakdown += time;
                observer.step(&StepReport { epoch, step, steps, loss, time });
            }
            let losses = &mut result.losses[first..];
            self.comm.all_reduce(losses, ReduceOp::Avg)?;
            let loss = losses.iter().sum::<f64>() / losses.len().max(1) as f64;
            self.strategy.before_evaluation(&mut self.model)?;
            result.test = evaluate(&mut self.model, self.test, self.config.batch, self.comm)?;
            observer.epoch(&EpochReport { epoch, loss, test: result.test });
            if result.losses.len() as u64 == steps {
                break;
            }
        }
        result.time = result.breakdown.total();
        result.buckets = self.strategy.buckets().to_vec();
        result.weights_hash = self.same_weights()?;
        Ok(result)
    }

    /// One step over these samples at the learning rate `lr`: (loss, where the time went).
    fn step(&mut self, samples: &[usize], lr: f64) -> Result<(f64, Breakdown)> {
        let comm = self.comm;
        let start = comm.now();
        self.train.gather(samples, &mut self.batch);
        comm.charge(&work(data_cost::<F>(self.batch.x.len())));
        let mut time = Breakdown { data: comm.now() - start, ..Breakdown::default() };
        let loss = self.gradients(&mut time)?;
        let backward = comm.now();
        let elements = self.model.params.len();
        if self.config.clip_norm > 0.0 {
            optim::clip::clip(&mut self.model.grads, self.config.clip_norm);
            comm.charge(&work(optim::clip::cost::<F>(elements)));
        }
        self.optimiser.step(lr, &mut self.model.params, &self.model.grads);
        comm.charge(&work(self.optimiser.cost(elements)));
        time.optimiser = comm.now() - backward;
        Ok((loss, time))
    }

    /// Forward and backward over the gathered batch, one micro-batch after another; returns the loss of the whole.
    fn gradients(&mut self, time: &mut Breakdown) -> Result<f64> {
        let (comm, inputs) = (self.comm, self.model.network().inputs());
        let Batch { x, labels } = &self.batch;
        let size = self.config.micro_batch(labels.len());
        let (mut loss, mut left) = (0.0, labels.len());
        for (x, micro) in x.chunks(size * inputs).zip(labels.chunks(size)) {
            left -= micro.len();
            let share = micro.len() as f64 / labels.len() as f64;
            let objective = Objective { labels: micro, scale: F::from_f64(share), more: left > 0 };
            let start = comm.now();
            let waited = self.strategy.forward(&mut self.model, x)?;
            let forward = comm.now();
            let synced = self.strategy.backward(&mut self.model, objective)?;
            loss += share * synced.loss.to_f64();
            time.forward += forward - start - waited;
            time.backward += comm.now() - forward - synced.exposed;
            time.exposed += waited + synced.exposed;
        }
        Ok(loss)
    }

    /// The hash of the weights, after making sure that every rank has the same.
    fn same_weights(&self) -> Result<u64> {
        let mine = hash::weights(&self.model);
        let mut all = vec![0i64; self.comm.size() as usize];
        self.comm.all_gather(&[mine as i64], &mut all)?;
        match all.iter().position(|&hash| hash != all[0]) {
            None => Ok(mine),
            Some(rank) => Err(Error::Replicas(format!(
                "after training rank {rank} has weights {:016x} and rank 0 {:016x}",
                all[rank], all[0]
            ))),
        }
    }
}

/// Cost of copying `elements` of a batch.
pub(crate) fn data_cost<F>(elements: usize) -> Cost {
    Cost::launch(0, 2 * elements, size_of::<F>())
}
