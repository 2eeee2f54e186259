//! Dynamic loss scaling (P. Micikevicius et al., "Mixed Precision Training", ICLR 2018), by PyTorch's `GradScaler`.
//!
//! ```text
//! loss x scale -> backward -> exchange -> found inf or NaN on any rank?
//!                                           no:  grads / scale, step;  after `interval` of these scale x growth
//!                                           yes: no rank steps;        scale x backoff, but never below the floor
//! ```
//!
//! PyTorch's scaler has no floor: enough overflows in a row take its scale to 0, where gradients are 0 / 0 and the scale stays 0.
//! PyTorch's ranks do not exchange `found` either: if each holds its own part of the gradients, some step and some skip. As in
//! PyTorch, a skipped step updates the running statistics of batch norms; unlike in PyTorch, they never become infinite or NaN.

use crate::Result;
use allfold_collectives::{Communicator, ReduceOp};
use allfold_config::PrecisionConfig;
use allfold_kernels::nn::{Float, OpCost};

/// How a loss scale changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalerOptions {
    /// Factor of the scale after `interval` steps in a row without overflow.
    pub growth: f64,
    /// Factor of the scale after a gradient that was not finite.
    pub backoff: f64,
    /// The number of steps in a row without overflow after which the scale grows.
    pub interval: u64,
    /// Lower limit of the scale.
    pub floor: f64,
}

impl Default for ScalerOptions {
    /// PyTorch's values, with a lower limit of 2^-14 (the least normal f16).
    fn default() -> ScalerOptions {
        ScalerOptions::of(&PrecisionConfig::default())
    }
}

impl ScalerOptions {
    fn of(config: &PrecisionConfig) -> ScalerOptions {
        ScalerOptions {
            growth: config.scale_growth,
            backoff: config.scale_backoff,
            interval: config.scale_interval,
            floor: config.scale_floor,
        }
    }
}

/// A loss scale and its history: all of a scaler's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradScaler {
    /// The factor on the loss: f32 as in PyTorch, so it stops growing at the limit of f32.
    pub scale: f32,
    /// The number of steps without overflow since the scale changed.
    pub good: u64,
    /// Whether the last step was skipped.
    pub skipped: bool,
    rules: ScalerOptions,
}

impl GradScaler {
    /// The loss scaler of a configuration; `None` if its loss scale is 0.
    pub fn of(config: &PrecisionConfig) -> Option<GradScaler> {
        let scale = config.loss_scale as f32;
        (scale > 0.0).then(|| GradScaler::new(scale, ScalerOptions::of(config)))
    }

    /// A loss scaler that starts from this scale.
    pub fn new(scale: f32, rules: ScalerOptions) -> GradScaler {
        GradScaler { scale, good: 0, skipped: false, rules }
    }

    /// Divides `grads` by the scale. Returns whether any of them was infinite or NaN.
    pub fn unscale<F: Float>(&self, grads: &mut [F]) -> bool {
        let inverse = F::from_f64(1.0 / f64::from(self.scale));
        let mut found = false;
        for g in grads {
            // x times 0 is 0 for every finite x, and NaN for an infinity or NaN.
            found |= (*g * F::ZERO).is_nan();
            *g = *g * inverse;
        }
        found
    }

    /// Whether any rank found a gradient that is not finite, in which case all ranks skip the step.
    ///
    /// # Errors
    /// If communication fails.
    pub fn found_anywhere(found: bool, comm: &Communicator) -> Result<bool> {
        let mut found = [u8::from(found)];
        comm.all_reduce(&mut found, ReduceOp::Max)?;
        Ok(found[0] > 0)
    }

    /// Updates the scale after a step. `found`: the step was skipped, because a gradient was not finite.
    pub fn update(&mut self, found: bool) {
        self.skipped = found;
        if found {
            self.good = 0;
            self.scale = (self.scale * self.rules.backoff as f32).max(self.rules.floor as f32);
            return;
        }
        self.good += 1;
        if self.good == self.rules.interval {
            self.good = 0;
            let grown = self.scale * self.rules.growth as f32;
            if grown.is_finite() {
                self.scale = grown;
            }
        }
    }
}

/// Cost of [`GradScaler::unscale`] over `elements`.
pub fn unscale_cost<F>(elements: usize) -> OpCost {
    OpCost::launch(2 * elements, 2 * elements, size_of::<F>())
}
