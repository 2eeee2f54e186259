//! The optimisers by name: those of [`allfold_optim`], and those that a program adds.

pub use allfold_optim::{Adam, Lars, Optimiser, OptimiserState, Sgd, clip};

use crate::added::{Added, Named, no_such_type, typed};
use crate::layers::Init;
use crate::{Config, ParamSpec, Result};
use allfold_config::OptimiserConfig;
use allfold_kernels::nn::Float;

/// The names by which a configuration selects an optimiser.
pub const OPTIMISERS: &[(&str, &str)] = &[
    ("sgd", "gradient descent with momentum"),
    ("adam", "Adam; weight decay is added to the gradient"),
    ("adamw", "Adam with decoupled weight decay"),
    ("lars", "momentum with a rate for each parameter, by the norms of its weights and gradient"),
];

/// Builds an optimiser for parameters with the layout of the second argument.
pub type BuildOptimiser<F> = fn(&Config, &[ParamSpec]) -> Result<Box<dyn Optimiser<F>>>;

/// An optimiser for `optimiser.name = "NAME"`, on the CPU.
#[derive(Clone, Copy, Debug)]
pub struct OwnOptimiser {
    /// The name by which a configuration selects the optimiser.
    pub name: &'static str,
    /// A description of the optimiser in a few words.
    pub about: &'static str,
    /// Builds the optimiser for `precision.dtype = "f32"`.
    pub f32: BuildOptimiser<f32>,
    /// Builds the optimiser for `precision.dtype = "f64"`.
    pub f64: BuildOptimiser<f64>,
}

impl Named for OwnOptimiser {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// The optimisers that the program added.
pub(crate) static ADDED: Added<OwnOptimiser> = Added::to("optimiser", OPTIMISERS);

/// The optimiser that `config` selects, over parameters with the layout `params`.
///
/// # Errors
/// If no optimiser has that name.
pub fn build<F: Float>(config: &Config, params: &[ParamSpec]) -> Result<Box<dyn Optimiser<F>>> {
    /// Compiled here for both types, and in no crate that builds an optimiser.
    static BUILT: (BuildOptimiser<f32>, BuildOptimiser<f64>) = (built, built);
    typed::<BuildOptimiser<F>>(&BUILT.0, &BUILT.1).ok_or_else(no_such_type::<F>)?(config, params)
}

/// The number of elements of state that the optimiser of `config` keeps for each element that it updates.
///
/// # Errors
/// If no optimiser has that name.
pub fn state_per_element<F: Float>(config: &Config) -> Result<usize> {
    let one = ParamSpec { name: String::new(), shape: vec![1], range: 0..1, init: Init::Constant(0.0) };
    let mut optimiser = build::<F>(config, &[one])?;
    optimiser.step(0.0, &mut [F::ONE], &[F::ONE]);
    Ok(optimiser.state().vectors.iter().map(|(_, values)| values.len()).sum())
}

fn built<F: Float>(config: &Config, params: &[ParamSpec]) -> Result<Box<dyn Optimiser<F>>> {
    let OptimiserConfig { momentum, weight_decay, nesterov, beta1, beta2, eps, trust, .. } = config.optimiser;
    let adam = |decoupled| Adam::new((beta1, beta2), eps, weight_decay, decoupled);
    match config.optimiser.name.as_str() {
        "sgd" => Ok(Box::new(Sgd::new(momentum, weight_decay, nesterov))),
        "adam" => Ok(Box::new(adam(false))),
        "adamw" => Ok(Box::new(adam(true))),
        "lars" => Ok(Box::new(Lars::new(momentum, weight_decay, trust, params))),
        other => match ADDED.find(other).and_then(|own| typed::<BuildOptimiser<F>>(&own.f32, &own.f64)) {
            Some(build) => build(config, params),
            None => Err(crate::unknown::unknown("optimiser", other, ADDED.names())),
        },
    }
}
