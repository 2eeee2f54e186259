//! The samples of each rank in an epoch, by the rules of PyTorch's `DistributedSampler`.
//!
//! ```text
//! 10 samples, 4 ranks        order  0 1 2 3 4 5 6 7 8 9 | 0 1      (padded by wrapping to a multiple of 4)
//! rank 1                              1       5       9
//! drop_last                  order  0 1 2 3 4 5 6 7                (the tail that does not fill a row is dropped)
//! ```
//!
//! Padding repeats samples, which is harmless in training and wrong in evaluation: see [`exactly_once`].

use crate::{Config, Error, Network, Result};
use allfold_kernels::nn::Float;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

/// The rules by which ranks share a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// Number of samples.
    pub samples: usize,
    /// Number of ranks.
    pub world: usize,
    /// Whether the last samples are dropped where they do not divide among the ranks; otherwise samples are repeated.
    pub drop_last: bool,
    /// Draw a new order every epoch, from this seed; `None` keeps the dataset's order.
    pub shuffle: Option<u64>,
}

impl Sampler {
    /// The sampler that `config` selects, over a training set of `samples` samples.
    pub fn of(config: &Config, samples: usize, world: u32) -> Sampler {
        let limit = if config.data.train_samples > 0 { config.data.train_samples } else { usize::MAX };
        let shuffle = config.data.shuffle.then_some(config.seed);
        Sampler {
            samples: samples.min(limit),
            world: world as usize,
            drop_last: config.data.drop_last,
            shuffle,
        }
    }

    /// The samples of `rank` in `epoch`, in order. Every rank has the same number of samples. The order of an epoch
    /// depends on seed and epoch alone, not on the number of ranks.
    pub fn indices(&self, rank: usize, epoch: u64) -> Vec<usize> {
        self.dealt(epoch).into_iter().skip(rank).step_by(self.world).collect()
    }

    /// The samples of all ranks in `epoch`, in the order in which ranks take them in turn.
    pub(crate) fn dealt(&self, epoch: u64) -> Vec<usize> {
        self.order(epoch).into_iter().cycle().take(self.per_rank() * self.world).collect()
    }

    fn order(&self, epoch: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.samples).collect();
        if let Some(seed) = self.shuffle {
            order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed.wrapping_add(epoch)));
        }
        order
    }

    /// The samples of `rank` in `epoch` if no sample is repeated or dropped: some ranks have one sample more.
    pub fn own(&self, rank: usize, epoch: u64) -> Vec<usize> {
        self.order(epoch).into_iter().skip(rank).step_by(self.world).collect()
    }

    /// The number of samples that [`Sampler::own`] gives `rank`.
    pub fn own_len(&self, rank: usize) -> usize {
        self.samples.saturating_sub(rank).div_ceil(self.world)
    }

    /// How many samples a rank trains on in an epoch of `config`.
    fn trains_on(&self, config: &Config, rank: usize) -> u64 {
        (if config.data.uneven { self.own_len(rank) } else { self.per_rank() }) as u64
    }

    /// Steps of an epoch, the same on all ranks.
    pub fn steps(&self, config: &Config) -> u64 {
        let (samples, batch) = (self.trains_on(config, 0), config.training.batch as u64);
        if config.data.drop_last_batch { samples / batch } else { samples.div_ceil(batch) }
    }

    /// Steps until a run stops.
    pub fn run_steps(&self, config: &Config) -> u64 {
        let all = self.scheduled_steps(config);
        if config.training.stop_after == 0 { all } else { all.min(config.training.stop_after) }
    }

    /// Steps of a whole run, over which its learning rates are spread.
    pub fn scheduled_steps(&self, config: &Config) -> u64 {
        let limit = if config.training.max_steps == 0 { u64::MAX } else { config.training.max_steps };
        self.steps(config).saturating_mul(config.training.epochs).min(limit)
    }

    /// How many samples all ranks together see in this step of an epoch.
    pub fn in_step(&self, config: &Config, step: u64) -> u64 {
        let batch = config.training.batch as u64;
        let seen = |rank| self.trains_on(config, rank).saturating_sub(step * batch).min(batch);
        match config.data.uneven {
            true => (0..self.world).map(seen).sum(),
            false => self.world as u64 * seen(0),
        }
    }

    /// The samples of the smallest micro-batch of an epoch's last batch, if that batch is smaller than the others, the run makes it, and
    /// every rank has as many samples.
    fn smallest_of_last(&self, config: &Config) -> Option<usize> {
        let last = self.per_rank() % config.training.batch.max(1);
        let alike = !config.data.uneven && config.parallel.shares.is_empty();
        let made = !config.data.drop_last_batch && self.run_steps(config) >= self.steps(config);
        let micro = last.div_ceil(config.training.accumulate.max(1)).max(1);
        (last > 0 && alike && made).then(|| (last - 1) % micro + 1)
    }

    /// Checks that an epoch has a step, and that its last batch has enough samples for layers that normalise by a batch.
    ///
    /// # Errors
    /// What is missing, and what would be right.
    pub(crate) fn check<F: Float>(&self, config: &Config, network: &Network<F>) -> Result<()> {
        if self.run_steps(config) == 0 {
            return Err(self.no_step(config));
        }
        let Some(samples) = self.smallest_of_last(config) else { return Ok(()) };
        network.normalises(samples).map_err(|error| {
            Error::Config(format!(
                "{error}; `data.drop_last_batch` leaves out the last batch of an epoch, of which a rank has {samples}"
            ))
        })
    }

    /// The error for an epoch without a step.
    fn no_step(&self, config: &Config) -> Error {
        let Sampler { samples, world, .. } = self;
        let rule = match (self.drop_last, config.data.drop_last_batch) {
            (_, true) => {
                format!(
                    ", of which `data.drop_last_batch` drops batches of fewer than {},",
                    config.training.batch
                )
            }
            (true, _) => ", of which `data.drop_last` drops those that do not divide among the ranks,".into(),
            _ => String::new(),
        };
        Error::Data(format!(
            "{samples} training samples{rule} do not make one step for {world} ranks: use more samples or fewer ranks"
        ))
    }

    /// How many samples a rank sees in an epoch.
    pub fn per_rank(&self) -> usize {
        if self.drop_last { self.samples / self.world } else { self.samples.div_ceil(self.world) }
    }
}

/// The samples that `rank` evaluates. Over all ranks, every sample occurs exactly once.
pub fn exactly_once(samples: usize, world: usize, rank: usize) -> Vec<usize> {
    (rank..samples).step_by(world).collect()
}
