//! The samples that a rank is given, and the weight of its losses.

use super::Run;
use crate::data::loader::Chunk;
use crate::engine::{AxisPosition, Mesh, MeshAxis};
use crate::shares::dealt;
use crate::{Config, DrawKey, Result, Sampler, data, strategies};
use allfold_collectives::Communicator;
use allfold_kernels::nn::Float;

/// A rank's position among the ranks with samples of their own, and the weight of its losses.
#[derive(Clone, Copy)]
pub(super) struct DataPlace {
    /// The position of this rank among the ranks with samples of their own. Ranks that share samples by token positions (the
    /// context axis) have the same position.
    pub place: AxisPosition,
    /// Whether this rank is given the samples of all ranks of the data axis.
    pub takes_all: bool,
    /// Whether this rank is given no samples.
    pub takes_none: bool,
    /// The weight of this rank's loss in the mean over all ranks.
    pub weight: f64,
}

/// The samples of a rank in a step of a run on so many ranks and training samples: `training.batch`, or fewer if there are too few.
///
/// # Errors
/// A strategy that does not take this number of ranks.
pub fn samples_of_rank(config: &Config, ranks: u32, samples: usize) -> Result<usize> {
    let mesh: Mesh = strategies::mesh(config, ranks)?;
    let world = mesh.position(0, MeshAxis::Data).size / mesh.context;
    let most = Sampler::of(config, samples, world as u32).per_rank();
    Ok(if config.parallel.shares.is_empty() {
        config.training.batch.min(most)
    } else {
        config.training.batch
    })
}

impl DataPlace {
    /// The position of this rank of `comm`.
    pub fn of(config: &Config, comm: &Communicator) -> Result<DataPlace> {
        let mesh: Mesh = strategies::mesh(config, comm.size())?;
        let [place, stage, tensor] = [MeshAxis::Data, MeshAxis::Pipeline, MeshAxis::Tensor]
            .map(|axis| mesh.position(comm.rank().index(), axis));
        let first_trains = config.strategy == "data_parallel";
        let takes_none = mesh.is_server(comm.rank().index());
        let weight = match first_trains {
            _ if takes_none => 0.0,
            true => f64::from(u8::from(place.index == 0)),
            false => f64::from(u8::from(stage.index == 0 && tensor.index == 0)) / place.size as f64,
        };
        let takes_all = first_trains && place.index == 0;
        let place = AxisPosition { index: place.index / mesh.context, size: place.size / mesh.context };
        Ok(DataPlace { place, takes_all, takes_none, weight })
    }
}

impl<'a, F: Float> Run<'a, F> {
    /// The key of the random draws of a step.
    pub(super) fn draw_key(&self, step: u64) -> DrawKey {
        let (first, stride) = match self.unequal(step) {
            Some(counts) => (counts[..self.data.place.index].iter().sum::<usize>() as u32, 1),
            None => (self.data.place.index as u32, self.data.place.size as u32),
        };
        DrawKey { seed: self.config.seed, step: step as u32, first, stride }
    }

    /// How many samples each rank has in a step of the run, if they have unequal shares.
    fn unequal(&self, step: u64) -> Option<Vec<usize>> {
        let shares = &self.config.parallel.shares;
        let of_epoch = step % self.sampler.steps(self.config).max(1);
        let all = || self.sampler.in_step(self.config, of_epoch) as usize;
        (!shares.is_empty()).then(|| dealt(all(), shares))
    }

    /// How much this rank's loss counts in a step of the run, relative to an equal share.
    pub(super) fn weight(&self, step: u64) -> f64 {
        self.unequal(step).map_or(1.0, |counts| {
            let all = counts.iter().sum::<usize>().max(1);
            (counts[self.data.place.index] * counts.len()) as f64 / all as f64
        })
    }

    /// The batches of this rank from a step of the run on, of `per_epoch` steps an epoch and `steps` in all.
    ///
    /// # Errors
    /// Random changes that the pictures are too small for.
    pub(super) fn chunks(
        &self,
        (from, steps, per_epoch): (u64, u64, u64),
    ) -> Result<impl Iterator<Item = Chunk> + use<'a, F>> {
        let (config, sampler, data) = (self.config, self.sampler, self.data);
        let augment = data::augment(config, self.train.shape)?;
        let (epochs, mut listed) =
            (EpochSamples { config, sampler, data, per_epoch }, (u64::MAX, Vec::new()));
        Ok((from..steps).map(move |step| {
            let (epoch, of_epoch) = (step / per_epoch, (step % per_epoch) as usize);
            if listed.0 != epoch {
                listed = (epoch, epochs.of(epoch));
            }
            let samples = std::mem::take(&mut listed.1[of_epoch]);
            Chunk { samples, augment: augment.in_epoch(epoch) }
        }))
    }
}

/// The samples of a rank in an epoch.
struct EpochSamples<'a> {
    config: &'a Config,
    sampler: Sampler,
    data: DataPlace,
    per_epoch: u64,
}

impl EpochSamples<'_> {
    /// This rank's samples in each step of an epoch. If the numbers of samples are uneven, a rank has none in steps that other
    /// ranks still do.
    fn of(&self, epoch: u64) -> Vec<Vec<usize>> {
        let shares = &self.config.parallel.shares;
        let chunks_of = |rank: usize| -> Vec<Vec<usize>> {
            if !shares.is_empty() {
                let own = |all: &[usize]| {
                    let counts = dealt(all.len(), shares);
                    let first: usize = counts[..rank].iter().sum();
                    all[first..first + counts[rank]].to_vec()
                };
                let step = self.config.training.batch * shares.len();
                return self.sampler.dealt(epoch).chunks(step).map(own).collect();
            }
            let indices = match self.config.data.uneven {
                true => self.sampler.own(rank, epoch),
                false => self.sampler.indices(rank, epoch),
            };
            indices.chunks(self.config.training.batch).map(<[usize]>::to_vec).collect()
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
        chunks.resize(self.per_epoch as usize, Vec::new());
        chunks
    }
}
