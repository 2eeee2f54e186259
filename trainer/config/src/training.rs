//! The table `[training]`: how long a run is, in which steps it goes, and by what it is judged.

use crate::{Error, Result};
use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// The loss that a run minimises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossName {
    /// The cross-entropy of the softmax and the label.
    #[default]
    CrossEntropy,
    /// The mean squared distance to the one-hot label.
    Mse,
}

/// The score by which epochs are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreBy {
    /// The accuracy: higher is better.
    #[default]
    Accuracy,
    /// The loss: lower is better.
    Loss,
}

impl ScoreBy {
    /// A value that every score is better than.
    pub fn worst(self) -> f64 {
        match self {
            ScoreBy::Accuracy => f64::NEG_INFINITY,
            ScoreBy::Loss => f64::INFINITY,
        }
    }

    /// Whether `value` is better than `than` by more than `delta`.
    pub fn better(self, value: f64, than: f64, delta: f64) -> bool {
        match self {
            ScoreBy::Accuracy => value > than + delta,
            ScoreBy::Loss => value < than - delta,
        }
    }
}

/// How long a run is, in which steps it goes, and by what it is judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct TrainingConfig {
    /// Passes over the training set.
    pub epochs: u64,
    /// Largest number of steps; 0: no limit.
    pub max_steps: u64,
    /// Steps after which the run stops, 0: none. The learning rates are those of the whole run, which may be resumed.
    pub stop_after: u64,
    /// Samples per step on each rank, of all its micro-batches together. The last batch of an epoch may be smaller, unless
    /// `data.drop_last_batch` drops it.
    pub batch: usize,
    /// Micro-batches that a rank's batch is cut into, at most one for each sample. In PyTorch's scripts each micro-batch has the size of
    /// a batch. Gradients are accumulated, and exchanged once, with the last micro-batch.
    pub accumulate: usize,
    /// Of which transformer blocks the backward pass recomputes the activations instead of keeping them: 1: all, 2: every second, 0: none.
    /// A recomputed block keeps its input and output; losses and weights have the same bits.
    pub recompute: usize,
    /// `cross_entropy`, or `mse` against the one-hot label.
    pub loss: LossName,
    /// The score by which epochs are compared, for `training.patience`, `checkpoint.best` and plateau: `accuracy` or `loss`, both on
    /// the test set or the samples that `data.validation` holds out.
    pub score: ScoreBy,
    /// Whether every epoch also ends with a score on the training set, which takes a forward pass over the set.
    pub score_train: bool,
    /// Epochs in a row without a better score after which the run ends; 0: it never ends early.
    pub patience: u64,
    /// By how much a score must exceed the last better one to count as better, for `training.patience`: 0.001 is 0.1 % of accuracy.
    pub min_delta: f64,
}

impl Default for TrainingConfig {
    fn default() -> TrainingConfig {
        TrainingConfig {
            epochs: 4,
            max_steps: 0,
            stop_after: 0,
            batch: 16,
            accumulate: 1,
            recompute: 0,
            loss: LossName::default(),
            score: ScoreBy::default(),
            score_train: false,
            patience: 0,
            min_delta: 0.0,
        }
    }
}

impl TrainingConfig {
    /// Checks that `min_delta` has an effect.
    pub(crate) fn check(&self) -> Result<()> {
        if self.min_delta > 0.0 && self.patience == 0 {
            let what = "`training.min_delta` is for `training.patience`: set both of them";
            return Err(Error(what.into()));
        }
        Ok(())
    }
}
