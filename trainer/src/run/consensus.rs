//! Agreement between ranks besides gradients: equal weights at the start and at the end, mean losses, and aborts after divergence.

use super::epochs::Progress;
use super::report::Line;
use super::{Observer, Run};
use crate::{Config, Dataset, Error, Model, Network, Result, hash};
use allfold_collectives::{Communicator, Rank, ReduceOp};
use allfold_config::AutocastType;
use allfold_kernels::nn::Float;
use allfold_sim::Picos;

/// The rank whose weights and buffers all ranks begin with.
const ROOT: Rank = Rank(0);
/// A run in f16 with a loss scale ends after this many losses in a row that are not finite.
const ALLOWED_LOSSES: usize = 10;
/// The time between two exchanges of losses for an observer, and the most steps between them.
const BETWEEN_LINES: Picos = Picos(1_000_000_000_000);
const MOST_STEPS: u128 = 1 << 20;

impl<F: Float> Run<'_, F> {
    /// Ends the run after a loss that is not finite. With a loss scale in f16 a few such losses are allowed, because the
    /// scale skips those steps.
    pub(super) fn finite(&self, losses: &[f64]) -> Result<()> {
        let passing = self.state.scaler.is_some() && self.config.precision.amp == AutocastType::F16;
        let bad = losses.iter().rev().take_while(|loss| !loss.is_finite()).count();
        let [.., loss] = *losses else { return Ok(()) };
        if bad < if passing { ALLOWED_LOSSES } else { 1 } {
            return Ok(());
        }
        Err(self.state.diverged(("the loss", loss), losses.len() as u64, self.not_finite.clone()))
    }

    /// Replaces the losses that are still this rank's own by their means over all ranks, and tells `observer`. Where it needs them
    /// between scores, rank 0 says by its clock after which step the next ones are due.
    pub(super) fn share(&self, progress: &mut Progress, observer: &mut dyn Observer) -> Result<()> {
        let (first, done) = (progress.shared, progress.done());
        self.average(&mut progress.result.losses, &mut progress.shared)?;
        observer.losses(first, &progress.result);
        if observer.wants_losses() {
            let now = self.comm.now();
            let taken = now.0.saturating_sub(progress.line.at.0).max(1);
            let steps = u128::from(BETWEEN_LINES.0) * (done - first as u64) as u128 / u128::from(taken);
            let mut due = [(done + steps.clamp(1, MOST_STEPS) as u64) as i64];
            self.comm.broadcast(&mut due, ROOT)?;
            progress.line = Line { due: due[0].unsigned_abs(), at: now };
        }
        Ok(())
    }

    /// Replaces the losses from index `shared` on, which are still this rank's own, by their means over all ranks.
    fn average(&self, losses: &mut [f64], shared: &mut usize) -> Result<()> {
        if self.config.data.uneven {
            // A rank without samples in a step has no loss, so the mean is over the other ranks.
            let new = &mut losses[*shared..];
            let active = |step: u64| {
                self.sampler.own_len(self.comm.rank().index()) as u64
                    > step * self.config.training.batch as u64
            };
            let per_epoch = self.sampler.steps(self.config);
            let counted = |at: usize| f64::from(active((*shared + at) as u64 % per_epoch));
            let mut counts: Vec<f64> = (0..new.len()).map(counted).collect();
            self.comm.all_reduce(&mut counts, ReduceOp::Sum)?;
            self.comm.all_reduce(new, ReduceOp::Sum)?;
            new.iter_mut().zip(counts).for_each(|(loss, count)| *loss /= count.max(1.0));
        } else if self.data.weight != 1.0 / f64::from(self.comm.size())
            || !self.config.parallel.shares.is_empty()
        {
            let new = &mut losses[*shared..];
            let steps = *shared as u64..;
            new.iter_mut().zip(steps).for_each(|(loss, step)| *loss *= self.data.weight * self.weight(step));
            self.comm.all_reduce(new, ReduceOp::Sum)?;
        } else {
            self.comm.all_reduce(&mut losses[*shared..], ReduceOp::Avg)?;
        }
        *shared = losses.len();
        Ok(())
    }

    /// The hash of the weights, after a check that every rank has the same weights.
    pub(super) fn same_weights(&self) -> Result<u64> {
        let mine = hash::weights(&self.state.host.model);
        match other_rank(self.comm, [mine as i64])? {
            None => Ok(mine),
            Some(OtherRank { rank, theirs: [theirs], first: [first] }) => Err(Error::Replicas(format!(
                "after training rank {rank} has weights {theirs:016x} and rank 0 {first:016x}"
            ))),
        }
    }
}

/// Gives all ranks rank 0's parameters and buffers.
pub(super) fn begin_alike<F: Float>(comm: &Communicator, model: &mut Model<F>) -> Result<()> {
    comm.broadcast(&mut model.params, ROOT)?;
    Ok(comm.broadcast(&mut model.buffers, ROOT)?)
}

/// A rank whose numbers are not those of rank 0.
struct OtherRank<const N: usize> {
    rank: usize,
    theirs: [i64; N],
    first: [i64; N],
}

/// The first rank whose numbers are not those of rank 0, if there is one. Every rank must call it.
fn other_rank<const N: usize>(comm: &Communicator, mine: [i64; N]) -> Result<Option<OtherRank<N>>> {
    let mut all = vec![0i64; N * comm.size() as usize];
    comm.all_gather(&mine, &mut all)?;
    let (rows, _) = all.as_chunks::<N>();
    let rank = rows.iter().position(|row| *row != rows[0]);
    Ok(rank.map(|rank| OtherRank { rank, theirs: rows[rank], first: rows[0] }))
}

/// Keys that say where a rank finds its files and how it uses its host, and the one that restarted ranks set: ranks may differ in them.
const OWN_KEYS: [&str; 7] = [
    "data.dir",
    "data.workers",
    "data.prefetch",
    "threads",
    "checkpoint.dir",
    "checkpoint.resume",
    "model.weights",
];

/// Refuses ranks with another configuration than rank 0's, but for [`OWN_KEYS`]: names the first key that differs, and both values.
pub(super) fn same_config(comm: &Communicator, config: &Config) -> Result<()> {
    let key = |line: &str| line.split_once(" = ").map_or(line.len(), |(key, _)| key.len());
    let mut lines = config.lines().map_err(|error| Error::Config(error.to_string()))?;
    lines.retain(|line| !OWN_KEYS.contains(&&line[..key(line)]));
    let mine = lines.join("\n");
    let hash = allfold_sim::fnv1a(mine.as_bytes()) as i64;
    let Some(OtherRank { rank, .. }) = other_rank(comm, [hash])? else { return Ok(()) };
    let shown = |of: usize| {
        let mut length = [mine.len() as i64];
        comm.broadcast(&mut length, Rank(of as u32))?;
        let mut bytes = mine.clone().into_bytes();
        bytes.resize(length[0].unsigned_abs() as usize, 0);
        comm.broadcast(&mut bytes, Rank(of as u32))?;
        Ok::<_, Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (first, other) = (shown(0)?, shown(rank)?);
    let differ = first.lines().zip(other.lines()).find(|(first, other)| first != other);
    Err(Error::Config(match differ {
        Some((first, other)) => format!(
            "rank {rank} has `{other}` and rank 0 has `{first}`; every rank needs the same configuration"
        ),
        None => {
            format!("rank {rank} has other keys than rank 0; every rank needs the same version of Allfold")
        }
    }))
}

/// Refuses ranks with other data than rank 0: every rank draws its share of the same samples.
pub(super) fn same_data(comm: &Communicator, sets: [&Dataset; 2]) -> Result<()> {
    let [train, test] = sets.map(|set| (set.len() as i64, set.fingerprint()));
    let mine = [train.0, test.0, train.1? as i64, test.1? as i64];
    let Some(OtherRank { rank, theirs, first }) = other_rank(comm, mine)? else { return Ok(()) };
    Err(Error::Data(format!(
        "rank {rank} has {} samples to train on and {} to test, and rank 0 {} and {}, or their values or labels differ; every \
         rank needs the same data, of which it takes its share",
        theirs[0], theirs[1], first[0], first[1]
    )))
}

/// Refuses ranks whose parameters or buffers differ from rank 0's in number, name or shape.
pub(super) fn same_layout<F: Float>(comm: &Communicator, network: &Network<F>) -> Result<()> {
    let places = || network.params().iter().chain(network.buffers());
    let text: String = places().map(|place| format!("{} {:?};", place.name, place.shape)).collect();
    let mine = [
        network.params().len() as i64,
        network.param_count() as i64,
        allfold_sim::fnv1a(text.as_bytes()) as i64,
    ];
    let Some(OtherRank { rank, theirs, first }) = other_rank(comm, mine)? else { return Ok(()) };
    Err(Error::Replicas(format!(
        "rank {rank} has {} parameters of {} elements and rank 0 has {} of {}, or their names and shapes differ; \
         every rank must build the same model",
        theirs[0], theirs[1], first[0], first[1]
    )))
}
