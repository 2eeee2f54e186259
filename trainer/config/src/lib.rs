//! The configuration of a run: TOML tables, every key with a default.
//!
//! ```
//! use allfold_config::Config;
//!
//! let config = Config::read("[training]\nepochs = 2\n[optimiser]\nlr = 0.1", "run.toml").unwrap();
//! assert_eq!((config.model.name.as_str(), config.training.epochs, config.optimiser.lr), ("cnn", 2, 0.1));
//!
//! let error = Config::read("[training]\nepochs = 2\nbach = 16", "run.toml").unwrap_err();
//! assert_eq!(error.to_string(), "run.toml:3:1: unknown key `training.bach`; the nearest is `training.batch`");
//!
//! let config = Config::default().with(|c| c.training.batch = 64);
//! assert_eq!(config.training.batch, 64);
//! ```
//!
//! A closed set of words is an enum. Parts to which a program can add its own (models, data, optimisers, hooks, strategies) are
//! selected by name, and the trainer checks the name.

mod checkpoint;
mod config;
mod data;
mod ddp;
mod devices;
mod documented_file;
mod error;
mod exchange;
mod keys;
mod limits;
mod lr_schedule;
mod model;
mod optimiser;
mod parallel;
mod pictures;
mod precision;
mod read;
mod training;
mod unknown_key;

pub use checkpoint::{CheckpointConfig, may_differ};
pub use config::Config;
pub use data::DataConfig;
pub use ddp::{Caps, DdpConfig};
pub use devices::{RankDevice, are_real_devices};
pub use error::{Error, Result};
pub use exchange::GpuExchange;
pub use lr_schedule::{LrScheduleConfig, LrScheduleName, LrUnit};
pub use model::ModelConfig;
pub use optimiser::OptimiserConfig;
pub use parallel::{ParallelConfig, ScheduleName, StageSharing};
pub use precision::{AutocastType, ElementType, PrecisionConfig};
pub use training::{LossName, ScoreBy, TrainingConfig};

/// Shows the values of an enum by the words that a file has for them.
macro_rules! shown_as_in_files {
    ($($name:ty),*) => {
        $(impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                serde::Serialize::serialize(self, f)
            }
        })*
    };
}

shown_as_in_files!(
    AutocastType,
    ElementType,
    GpuExchange,
    LossName,
    LrScheduleName,
    LrUnit,
    ScheduleName,
    ScoreBy,
    StageSharing
);
