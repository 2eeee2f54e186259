//! Optimisers, one file each: how the gradients of a step move the parameters.
//!
//! | file | state per element | for |
//! |---|---|---|
//! | [`sgd`] | a velocity, or nothing | momentum, Nesterov's momentum |
//! | [`adam`] | two moments | Adam and AdamW |
//! | [`lars`] | a velocity | large batches: a rate for each parameter |
//!
//! [`clip`] bounds the norm of all gradients before a step. Every formula is PyTorch's where PyTorch has one.
//!
//! Optimisers are a crate of their own so that each strategy can move whole parameters or a rank's part of them by the same code:
//! an optimiser gets flat buffers, and no ranks.
//!
//! ```
//! use allfold_optim::{Optimiser, Sgd};
//!
//! // Momentum 0.5, no weight decay, no Nesterov momentum.
//! let (mut sgd, mut params) = (Sgd::<f32>::new(0.5, 0.0, false), [1.0, 2.0]);
//! sgd.step(0.5, &mut params, &[1.0, 0.0]);
//! assert_eq!(params, [0.5, 2.0]);
//! // Without a gradient half of the velocity remains.
//! sgd.step(0.5, &mut params, &[0.0, 0.0]);
//! assert_eq!(params, [0.25, 2.0]);
//! assert_eq!(*sgd.state().steps, 2);
//! ```

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
    /// Moves `params` against `grads`, which has the same layout, at the learning rate `optimiser.lr`.
    fn step(&mut self, lr: f64, params: &mut [F], grads: &[F]);

    /// Whether a step needs the norms of whole parameters and of their gradients.
    fn needs_norms(&self) -> bool {
        false
    }

    /// For each parameter of which this optimiser has elements: the squares of the norms of these elements and of their gradients.
    /// Empty for an optimiser that [needs](Optimiser::needs_norms) none.
    fn squares(&self, _params: &[F], _grads: &[F]) -> Vec<[f64; 2]> {
        Vec::new()
    }

    /// Sets, for the next step, the squares of the norms of the whole parameters of which this optimiser has elements.
    fn set_squares(&mut self, _squares: &[[f64; 2]]) {}

    /// Cost of a step over `params` elements.
    fn cost(&self, params: usize) -> OpCost;

    /// The state that the optimiser keeps between steps.
    fn state(&mut self) -> OptimiserState<'_, F>;
}

/// An optimiser's state, which a checkpoint stores.
pub struct OptimiserState<'a, F> {
    /// The number of steps so far.
    pub steps: &'a mut u64,
    /// The state vectors by PyTorch's names. Each has the parameters' layout, or is empty: before the first step, or if not used.
    pub vectors: Vec<(&'static str, &'a mut Vec<F>)>,
}
