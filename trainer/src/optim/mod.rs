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

use crate::added::{Added, Named, typed};
use crate::{Config, ParamSpec, Result};
use allfold_kernels::nn::{Float, OpCost};

/// The names by which a configuration asks for an optimiser.
pub const OPTIMISERS: &[(&str, &str)] = &[
    ("sgd", "gradient descent with momentum"),
    ("adam", "Adam; weight decay is added to the gradient"),
    ("adamw", "Adam with decoupled weight decay"),
    ("lars", "momentum with a rate for each parameter, by the norms of its weights and gradient"),
];

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

/// Builds an optimiser of elements that lie as the second argument says.
pub type BuildOptimiser<F> = fn(&Config, &[ParamSpec]) -> Result<Box<dyn Optimiser<F>>>;

/// An optimiser for `optimiser = "NAME"`, on the CPU.
#[derive(Clone, Copy, Debug)]
pub struct OwnOptimiser {
    /// The name in configurations.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Builds it for `dtype = "f32"`.
    pub f32: BuildOptimiser<f32>,
    /// Builds it for `dtype = "f64"`.
    pub f64: BuildOptimiser<f64>,
}

impl Named for OwnOptimiser {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// The optimisers that the program added.
pub(crate) static ADDED: Added<OwnOptimiser> = Added::to("optimiser", OPTIMISERS);

/// The optimiser that `config` asks for, of elements that lie as `params` says.
///
/// # Errors
/// If none has that name.
pub fn build<F: Float>(config: &Config, params: &[ParamSpec]) -> Result<Box<dyn Optimiser<F>>> {
    let Config { momentum, weight_decay, nesterov, .. } = *config;
    let adam = |decoupled| Adam::new((config.beta1, config.beta2), config.eps, weight_decay, decoupled);
    match config.optimiser.as_str() {
        "sgd" => Ok(Box::new(Sgd::new(momentum, weight_decay, nesterov))),
        "adam" => Ok(Box::new(adam(false))),
        "adamw" => Ok(Box::new(adam(true))),
        "lars" => Ok(Box::new(Lars::new(momentum, weight_decay, config.trust, params))),
        other => match ADDED.find(other).and_then(|own| typed::<BuildOptimiser<F>>(&own.f32, &own.f64)) {
            Some(build) => build(config, params),
            None => Err(crate::unknown::unknown("optimiser", other, ADDED.names())),
        },
    }
}
