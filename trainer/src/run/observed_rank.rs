//! What a rank records of its steps for an observer.

use super::RankTrainer;
use crate::MemoryUse;
use crate::timing::{LayerSpan, StepSpan};
use allfold_kernels::nn::Float;

impl<F: Float> RankTrainer<'_, F> {
    /// Turns the records of [`RankTrainer::spans`] and [`RankTrainer::peak`] on or off.
    pub fn observe(&mut self, wanted: bool) {
        self.worker.observe(wanted);
    }

    /// The work and the waiting of the last step, in order.
    pub fn spans(&self) -> &[StepSpan] {
        self.worker.spans()
    }

    /// Turns the record of [`RankTrainer::layers`] on or off, from the next step on.
    pub fn observe_layers(&mut self, wanted: bool) {
        self.worker.observe_layers(wanted);
    }

    /// The passes of layers in the last step, in order.
    pub fn layers(&self) -> &[LayerSpan] {
        self.worker.layers()
    }

    /// The memory of this rank at the time in the last step when it held the most, if it was recorded.
    pub fn peak(&self) -> Option<MemoryUse> {
        Some(self.worker.peak()).filter(|peak| peak.total() > 0)
    }
}
