//! Optimisers, one file each: how the gradients of a step move the parameters.
//!
//! | file | state per element | for |
//! |---|---|---|
//! | [`sgd`] | a velocity, or nothing | momentum, Nesterov's momentum |
//! | [`adam`] | two moments | Adam and AdamW |
//! | [`lars`] | a velocity | large batches: a rate for each parameter |
//!
//! [`clip`] bounds the norm of all gradients before a step. Every formula is PyTorch's where PyTorch has one.

pub mod adam;
pub mod clip;
pub mod lars;
pub mod sgd;

pub use adam::Adam;
pub use lars::Lars;
pub use sgd::Sgd;

use allfold_kernels::nn::{Float, OpCost};

/// An optimiser: moves parameters by their gradients.
pub trait Optimiser<F: Float> {
    /// Moves `params` against `grads`, which is laid out alike, at the learning rate `lr`.
    fn step(&mut self, lr: f64, params: &mut [F], grads: &[F]);

    /// Cost of a step over `params` elements.
    fn cost(&self, params: usize) -> OpCost;

    /// The state that the optimiser keeps between steps.
    fn state(&mut self) -> OptimiserState<'_, F>;
}

/// An optimiser's memory: what a checkpoint keeps.
pub struct OptimiserState<'a, F> {
    /// Steps so far.
    pub steps: &'a mut u64,
    /// By PyTorch's names; each is laid out as the parameters are, or empty before the first step.
    pub vectors: Vec<(&'static str, &'a mut Vec<F>)>,
}
