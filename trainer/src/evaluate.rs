//! Evaluation on a test set that is divided among the ranks: every sample counts once, on one rank.

use crate::sampler::exactly_once;
use crate::timing::work;
use crate::{Batch, Dataset, Model, Result};
use allfold_collectives::{Communicator, ReduceOp};
use allfold_kernels::nn::Float;

/// The result over all ranks; the same on each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Number of labels: one per picture, or one per position of a text.
    pub labels: u64,
    /// Number of labels that have the largest logit.
    pub correct: u64,
    /// Mean loss of a label.
    pub loss: f64,
}

impl Evaluation {
    /// The share of correct answers; 0 if there are no labels.
    pub fn accuracy(&self) -> f64 {
        if self.labels == 0 { 0.0 } else { self.correct as f64 / self.labels as f64 }
    }
}

/// A rank's place among the parts of a set that is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluationPlace {
    /// The number of this rank's part.
    pub index: usize,
    /// The number of parts.
    pub size: usize,
    /// Whether the rank's result counts: of several ranks with the same part, the result of one rank counts.
    pub counts: bool,
}

/// [`evaluate_first`] with a function that returns (sum of losses, correct answers) of a batch.
///
/// # Errors
/// If the function or the communication fails.
pub fn evaluate_by<F: Float>(
    (set, count): (&Dataset, usize),
    batch: usize,
    (comm, place): (&Communicator, EvaluationPlace),
    mut over: impl FnMut(&Batch<F>) -> Result<(f64, u64)>,
) -> Result<Evaluation> {
    let mine = exactly_once(set.len().min(count), place.size, place.index);
    let (mut loss, mut counts, mut samples) = ([0.0], [0i64; 2], Batch::default());
    for indices in mine.chunks(batch.max(1)) {
        set.gather::<F>(indices, &mut samples)?;
        let (sum, correct) = over(&samples)?;
        loss[0] += sum;
        counts[0] += samples.labels.len() as i64;
        counts[1] += correct as i64;
    }
    if !place.counts {
        (loss, counts) = ([0.0], [0; 2]);
    }
    comm.all_reduce(&mut loss, ReduceOp::Sum)?;
    comm.all_reduce(&mut counts, ReduceOp::Sum)?;
    let [labels, correct] = counts.map(i64::unsigned_abs);
    Ok(Evaluation { labels, correct, loss: loss[0] / labels.max(1) as f64 })
}

/// Evaluates `model` on `test`, `batch` samples at a time on each rank.
///
/// # Errors
/// If samples cannot be read, or communication fails.
pub fn evaluate<F: Float>(
    model: &mut Model<F>,
    test: &Dataset,
    batch: usize,
    comm: &Communicator,
) -> Result<Evaluation> {
    evaluate_first(model, (test, test.len()), batch, comm)
}

/// [`evaluate`] on the first `count` samples of `set`.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_first<F: Float>(
    model: &mut Model<F>,
    (set, count): (&Dataset, usize),
    batch: usize,
    comm: &Communicator,
) -> Result<Evaluation> {
    let place = EvaluationPlace { index: comm.rank().index(), size: comm.size() as usize, counts: true };
    evaluate_by((set, count), batch, (comm, place), |samples| {
        let (sum, correct) = model.evaluate(samples, |cost| comm.charge(&work(cost)));
        Ok((sum.to_f64(), correct))
    })
}
