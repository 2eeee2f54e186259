//! The state of a hook under a loss scale: errors are in units of the scale, and errors of a skipped step are undone.

use super::Run;
use crate::checkpoint::Own;
use allfold_kernels::nn::Float;

impl<F: Float> Run<'_, F> {
    /// The state of the hook that a checkpoint must hold.
    pub(super) fn hook(&mut self) -> Own<F> {
        match &mut self.device {
            Some(device) => device.hook_state(),
            None => self.engine.as_mut().map(|engine| engine.worker.hook_state()).unwrap_or_default(),
        }
    }

    /// After a step that began with the loss scale `before`, if there is one: undoes the hook's changes of a skipped step, which rank 0
    /// notes, and rescales its errors to the current scale.
    pub(super) fn after_scaled(&mut self, step: u64, before: Option<f32>) {
        let (Some(scaler), Some(before)) = (self.scaler, before) else { return };
        let by = f64::from(scaler.scale) / f64::from(before);
        let (rank, now) = (self.comm.rank().0, scaler.scale);
        match scaler.skipped {
            true if rank == 0 => {
                tracing::info!(
                    "step {step} is skipped, since a gradient was not finite: loss scale {before} -> {now}"
                )
            }
            true => tracing::debug!(rank, "step {step} is skipped, since a gradient was not finite"),
            false if by != 1.0 => tracing::debug!(rank, "loss scale {before} -> {now}"),
            false => {}
        }
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
                if let Some(engine) = &mut self.engine {
                    engine.worker.after_scaled(scaler.skipped, F::from_f64(by));
                }
            }
        }
    }
}
