//! The outcome of a training step on a device.

/// The loss of a step, and whether the step was skipped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepOutcome {
    /// The mean loss of this rank's samples.
    pub loss: f64,
    /// Whether the step was skipped because a gradient was not finite.
    pub skipped: bool,
}
