//! What a hook remembers, under a loss scale: errors are in its units, and those of a step that overflowed are none.

use super::Run;
use crate::checkpoint::Own;
use allfold_kernels::nn::Float;

/// The scale before a step, and what the hook remembered then.
pub(super) type Before<F> = Option<(f32, Own<F>)>;

impl<F: Float> Run<'_, F> {
    /// What the hook remembers from step to step.
    pub(super) fn hook(&mut self) -> Own<F> {
        match &mut self.device {
            Some(device) => device.remembered(),
            None => self.strategy.remembered(),
        }
    }

    /// Before a step that a loss scale may skip.
    pub(super) fn before_scaled(&mut self) -> Before<F> {
        self.scaler.map(|scaler| (scaler.scale, self.hook()))
    }

    /// After that step, of which the run has made `steps`: the hook goes on from before a step that was skipped, with
    /// errors that fit the scale as it is now.
    pub(super) fn after_scaled(&mut self, steps: u64, before: Before<F>) {
        let (Some(scaler), Some((scale, before))) = (self.scaler, before) else { return };
        if before.is_empty() || (!scaler.skipped && scaler.scale == scale) {
            return;
        }
        let by = F::from_f64(f64::from(scaler.scale) / f64::from(scale));
        let now = if scaler.skipped { before } else { self.hook() };
        let fitting = |(name, mut values): (&str, Vec<F>)| {
            if name == "error" {
                values.iter_mut().for_each(|value| *value = *value * by);
            }
            values
        };
        let now: Vec<Vec<F>> = now.into_iter().map(fitting).collect();
        match &mut self.device {
            Some(device) => device.remember(steps, &now),
            None => self.strategy.remember(steps, &now),
        }
    }
}
