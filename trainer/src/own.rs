//! A program's own parts of training: models, optimisers, hooks, strategies and datasets that configurations find by name, in
//! addition to those of the tables. Layers need no row: a model uses any type that implements [`Layer`](crate::layers::Layer).
//!
//! ```
//! use allfold_trainer::own::{self, OwnModel, OwnParts};
//! use allfold_trainer::{Config, Network, Result, SampleForm, config, models};
//! use allfold_kernels::nn::Float;
//!
//! fn narrow<F: Float>(_: &Config, samples: SampleForm) -> Result<Network<F>> {
//!     let (channels, height, width) = samples.shape;
//!     Ok(models::mlp(channels * height * width, &[8], samples.classes)?)
//! }
//!
//! const MODELS: &[OwnModel] = &[OwnModel { name: "narrow", about: "8 hidden units", f32: narrow, f64: narrow }];
//! own::add(OwnParts { models: MODELS, ..OwnParts::NONE })?;
//!
//! let config = config::parse("[model]\nname = \"narrow\"", "narrow.toml")?;
//! assert_eq!(models::build::<f32>(&config, SampleForm::new((1, 8, 8), 10))?.param_count(), 64 * 8 + 8 + 8 * 10 + 10);
//! # Ok::<(), allfold_trainer::Error>(())
//! ```

pub use crate::data::OwnDataset;
pub use crate::models::{BuildModel, OwnModel};
pub use crate::optim::{BuildOptimiser, OwnOptimiser};
pub use crate::strategies::OwnStrategy;
pub use crate::strategies::hooks::{BuildHook, OwnHook};

use crate::{Result, data, models, optim, strategies};

/// All own parts of a program.
#[derive(Clone, Copy, Debug)]
pub struct OwnParts {
    /// The program's own models.
    pub models: &'static [OwnModel],
    /// The program's own optimisers.
    pub optimisers: &'static [OwnOptimiser],
    /// The program's own hooks of `ddp`.
    pub hooks: &'static [OwnHook],
    /// The program's own strategies.
    pub strategies: &'static [OwnStrategy],
    /// The program's own datasets.
    pub datasets: &'static [OwnDataset],
}

impl OwnParts {
    /// A program without parts of its own.
    pub const NONE: OwnParts =
        OwnParts { models: &[], optimisers: &[], hooks: &[], strategies: &[], datasets: &[] };
}

/// Adds a program's own parts, so that every later look-up by name finds them in addition to those of the tables. A program must
/// call this at most once, before it reads a configuration. All ranks of a job must add the same parts.
///
/// # Errors
/// A name that another part of the same kind has; a second call.
pub fn add(parts: OwnParts) -> Result<()> {
    models::ADDED.check(parts.models)?;
    optim::ADDED.check(parts.optimisers)?;
    strategies::hooks::ADDED.check(parts.hooks)?;
    strategies::ADDED.check(parts.strategies)?;
    data::ADDED.check(parts.datasets)?;
    models::ADDED.add(parts.models)?;
    optim::ADDED.add(parts.optimisers)?;
    strategies::hooks::ADDED.add(parts.hooks)?;
    strategies::ADDED.add(parts.strategies)?;
    data::ADDED.add(parts.datasets)
}
