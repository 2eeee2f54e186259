//! What a step on a device says.

/// The loss of a step, and whether the step counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepOutcome {
    /// The mean loss of this rank's samples.
    pub loss: f64,
    /// Whether a gradient was not finite, and the step was none.
    pub skipped: bool,
}
