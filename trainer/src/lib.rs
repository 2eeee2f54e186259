//! A library that trains neural networks: layers with a hand-written backward pass, models made of layers, and several strategies
//! of parallel training.
//!
//! No part of the trainer depends on the backend. A run gets a [`Communicator`](allfold_collectives::Communicator) and gives the
//! same losses and the same weights, bit for bit, on threads and on the simulator, whatever the size of the buckets; on the
//! simulator, virtual time also shows where the time of a run would go.
//!
//! ```
//! use allfold_collectives::World;
//! use allfold_trainer::{Config, train};
//!
//! let config = Config::default().with(|c| { c.model.name = "mlp".into(); c.training.max_steps = 20; });
//! let ranks = World::threads(2).run(|comm| train(&config, &comm, &mut ())).unwrap();
//! assert_eq!(ranks[0].losses, ranks[1].losses);
//! assert_eq!(ranks[0].weights_hash, ranks[1].weights_hash);
//! assert!(ranks[0].losses[19] < ranks[0].losses[0]);
//! ```
//!
//! Where to look: [`layers`] for the arithmetic, [`models`] for the networks, [`strategies`] for what each strategy of training
//! adds, [`run`] for the training loop and [`cuda`] for a training step on GPUs. `allfold-prediction` predicts the time of a step.

mod added;
pub mod buckets;
pub mod checkpoint;
pub mod config;
pub mod costs;
#[cfg_attr(not(feature = "cuda"), path = "cuda/absent.rs")]
pub mod cuda;
pub mod data;
pub mod engine;
mod error;
mod evaluate;
mod hash;
pub mod init;
pub mod lr_schedule;
mod model;
pub mod models;
pub mod optim;
#[cfg(test)]
#[path = "../tests/oracle/mod.rs"]
mod oracle;
pub mod own;
pub mod predict;
pub mod run;
pub mod sampler;
pub mod scaler;
pub mod scores;
pub mod shares;
pub mod strategies;
pub mod timing;
mod unknown;
pub mod weights;

pub use allfold_config::{Config, ScoreBy};
pub use allfold_networks::amp;
pub use allfold_networks::{
    Builder, ContextSplit, ExpertSplit, LayerTensors, Network, NetworkTensors, Outline, ParamLayout,
    ParamSpec, Phase, TensorSplit, layer_of, layers, workloads,
};
pub use allfold_pipeline as pipeline;
pub use data::{Batch, Dataset, SampleForm};
pub use error::{Error, Result};
pub use evaluate::{Evaluation, evaluate};
pub use lr_schedule::LrSchedule;
pub use model::{DrawKey, MemoryUse, Model};
pub use optim::{Optimiser, Sgd};
pub use run::{Observer, RankTrainer, StepReport, TrainResult, train, train_on, train_with};
pub use sampler::Sampler;
pub use scaler::GradScaler;
pub use scores::EpochReport;
