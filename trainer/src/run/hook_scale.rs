//! What a hook remembers, under a loss scale: errors are in its units, and those of a step that overflowed are none.

use super::Run;
use crate::checkpoint::Own;
use allfold_kernels::nn::Float;

impl<F: Float> Run<'_, F> {
    /// What the hook remembers from step to step.
    pub(super) fn hook(&mut self) -> Own<F> {
        match &mut self.device {
            Some(device) => device.hook_state(),
            None => self.strategy.hook_state(),
        }
    }

    /// After a step that began with the loss scale `before`, if there is one: the hook goes on from before a step that was
    /// skipped, with errors that fit the scale as it is now.
    pub(super) fn after_scaled(&mut self, before: Option<f32>) {
        let (Some(scaler), Some(before)) = (self.scaler, before) else { return };
        let by = f64::from(scaler.scale) / f64::from(before);
        match &mut self.device {
            Some(device) => {
                if scaler.skipped {
                    device.undo();
                }
                if scaler.scale != before {
                    device.rescale(by as f32);
                }
            }
            None => {
                if scaler.skipped {
                    self.strategy.undo();
                }
                if scaler.scale != before {
                    self.strategy.rescale(F::from_f64(by));
                }
            }
        }
    }
}
