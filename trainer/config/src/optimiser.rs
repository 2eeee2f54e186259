//! The table `[optimiser]`: how gradients change the weights.

use crate::{Error, Result};
use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// How gradients change the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct OptimiserConfig {
    /// `sgd`, `adam`, `adamw` or `lars`.
    pub name: String,
    /// Learning rate.
    pub lr: f64,
    /// Whether the learning rate is multiplied by the number of ranks.
    pub scale_lr: bool,
    /// Momentum of sgd and lars; 0 is plain gradient descent.
    pub momentum: f64,
    /// Nesterov's momentum, for sgd.
    pub nesterov: bool,
    /// Weight decay: added to the gradient; with adamw, subtracted from the weights.
    pub weight_decay: f64,
    /// Decay of adam's mean of gradients.
    pub beta1: f64,
    /// Decay of adam's mean of squared gradients.
    pub beta2: f64,
    /// Added to adam's denominator.
    pub eps: f64,
    /// Trust coefficient of lars: the length of a step relative to the weights.
    pub trust: f64,
    /// Largest norm of all gradients together; larger gradients are scaled down to it; 0: no clipping.
    pub clip_norm: f64,
}

impl Default for OptimiserConfig {
    fn default() -> OptimiserConfig {
        OptimiserConfig {
            name: "sgd".into(),
            lr: 0.02,
            scale_lr: false,
            momentum: 0.9,
            nesterov: false,
            weight_decay: 1e-4,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            trust: 0.001,
            clip_norm: 0.0,
        }
    }
}

impl OptimiserConfig {
    /// Checks that Nesterov's momentum has a momentum.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = match self.nesterov {
            true if self.name != "sgd" => "`optimiser.nesterov` is for optimiser `sgd`",
            true if self.momentum == 0.0 => "`optimiser.nesterov` needs an `optimiser.momentum` above 0",
            _ => return Ok(()),
        };
        Err(Error(wrong.into()))
    }
}
