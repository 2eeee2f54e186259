//! The table `[checkpoint]`: when checkpoints are written, and where.

use crate::{Error, Result};
use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// When checkpoints are written, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct CheckpointConfig {
    /// The folder of checkpoints, written by rank 0. A run that writes checkpoints and does not resume refuses a folder that contains
    /// some. SIGINT, SIGTERM, SIGHUP and SIGUSR1 end a run that writes checkpoints after the step under way, with a checkpoint.
    pub dir: String,
    /// Steps between two checkpoints; 0: none by steps. The last step has one too.
    pub every: u64,
    /// Epochs between two checkpoints, which are written after the epoch's evaluation; 0: none by epochs. The last step has one too.
    pub every_epochs: u64,
    /// How many of the newest checkpoints are kept.
    pub keep: usize,
    /// Whether each rank writes the part that it holds, into a folder `step-N.sharded`, instead of rank 0 everything into a file. All
    /// ranks then need the same `checkpoint.dir`. `best.safetensors` is a file all the same.
    pub sharded: bool,
    /// Whether the checkpoint of the epoch with the best score is kept beside the newest ones, as `best.safetensors`. An epoch that
    /// `training.max_steps` cuts short does not count.
    pub best: bool,
    /// Whether the run continues from the newest checkpoint, if there is one; without one it says so and begins at step 0.
    /// `training.patience` and `training.min_delta` may differ from the checkpoint's; so may `training.epochs` and
    /// `training.max_steps`, unless the learning rates depend on them (polynomial, cosine, one_cycle).
    pub resume: bool,
    /// Keys with other values than in the checkpoint that a resumed run continues with, such as ["optimiser.lr"]: those of
    /// `[optimiser]` except its name, of `[lr_schedule]`, `training.epochs`, `training.max_steps`, `model.frozen`, `model.trained`; and
    /// `data.samples`, the number of training samples, and `data.classes`, the names of the classes.
    pub may_differ: Vec<String>,
}

/// Whether a run may continue with another value of this key.
pub fn may_differ(key: &str) -> bool {
    key.starts_with("optimiser.") && key != "optimiser.name"
        || key.starts_with("lr_schedule.")
        || ["training.epochs", "training.max_steps", "model.frozen", "model.trained"].contains(&key)
        || ["data.samples", "data.classes"].contains(&key)
}

impl Default for CheckpointConfig {
    fn default() -> CheckpointConfig {
        CheckpointConfig {
            dir: "checkpoints".into(),
            every: 0,
            every_epochs: 0,
            keep: 3,
            sharded: false,
            best: false,
            resume: false,
            may_differ: Vec::new(),
        }
    }
}

impl CheckpointConfig {
    /// Whether the run writes checkpoints at certain steps or epochs, and at its last step.
    pub fn by_time(&self) -> bool {
        self.every > 0 || self.every_epochs > 0
    }

    /// Whether the run writes checkpoints at all.
    pub fn writes(&self) -> bool {
        self.by_time() || self.best
    }

    /// Checks that the keys that a resumed run may change are such keys.
    pub(crate) fn check(&self) -> Result<()> {
        match self.may_differ.iter().find(|key| !may_differ(key)) {
            None => Ok(()),
            Some(key) => Err(Error(format!(
                "`checkpoint.may_differ` names `{key}`, with which a run is another one; keys of [optimiser] except `name` and of \
                 [lr_schedule], `training.epochs`, `training.max_steps`, `model.frozen`, `model.trained`, `data.samples` and \
                 `data.classes` may differ"
            ))),
        }
    }
}
