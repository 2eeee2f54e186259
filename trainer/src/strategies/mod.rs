//! The ways to train, side by side: what each adds to forward, backward and the optimiser's step.
//!
//! | file | each rank holds | exchanged in a step |
//! |---|---|---|
//! | [`single`] | the only model | nothing |
//! | [`ddp`] | a replica | gradients, averaged in buckets while backward goes on |
//! | [`data_parallel`] | a replica; the first rank the batch and the optimiser | samples, outputs, gradients, weights |
//! | [`parameter_server`] | servers: parameters and optimiser; workers: samples | weights to workers, gradients to servers |
//! | [`zero1`] | a replica and a part of the optimiser state | gradients, in parts; then weights |
//! | [`zero2`] | a replica and a part of gradients and state | the same, after every micro-batch |
//! | [`zero3`] | a part of weights, gradients and state | weights before they are used; gradients, in parts |
//! | [`pipeline`] | some of the layers | activations and their gradients |
//! | `tensor` | a part of every layer ([`TensorSplit`](crate::TensorSplit)) | sums of activations and of their gradients |
//! | `context` | all parameters; some positions ([`ContextSplit`](crate::ContextSplit)) | keys and values, round a ring; gradients |
//!
//! [`single`] and [`ddp`] work on a [`Model`]. The others are a [`Driver`] and a [`DataSharing`] over a
//! [`RankEngine`](crate::engine::RankEngine).

pub mod data_parallel;
pub mod ddp;
mod driver;
pub mod hooks;
pub mod parameter_server;
pub mod pipeline;
mod plain;
mod registry;
mod replicated;
pub mod single;
pub mod zero1;
pub mod zero2;
pub mod zero3;

pub use driver::{DataSharing, Driver};
pub use plain::Plain;
pub(crate) use registry::{ADDED, mesh, on_engine, plan};
pub use registry::{EnginePlan, OwnStrategy, STRATEGIES, axes, fits, names};

use crate::timing::BucketTimes;
use crate::{Config, Model, Network, Objective, Result};
use allfold_collectives::Communicator;
use allfold_kernels::nn::Float;
use allfold_sim::Picos;

/// The outcome of a backward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Synced<F> {
    /// The mean loss of this rank's samples, not scaled.
    pub loss: F,
    /// Time spent waiting for other ranks.
    pub exposed: Picos,
}

/// One way to train.
pub trait Strategy<F: Float> {
    /// Before the first step: makes sure that every rank starts from the same numbers.
    ///
    /// # Errors
    /// If the ranks' models cannot be made equal, or communication fails.
    fn start(&mut self, model: &mut Model<F>) -> Result<()>;

    /// Forward through this rank's samples, in training. Returns the time spent waiting for other ranks.
    ///
    /// # Errors
    /// If communication fails.
    fn forward(&mut self, model: &mut Model<F>, x: &[F]) -> Result<Picos>;

    /// Backward through the last forward pass; afterwards the model's gradients are those of the mean over all ranks of
    /// the objective. Where more micro-batches follow, no gradient is exchanged: the last one's exchange is for all.
    ///
    /// # Errors
    /// If communication fails.
    fn backward(&mut self, model: &mut Model<F>, objective: Objective<F>) -> Result<Synced<F>>;

    /// Before an evaluation: makes the buffers (running statistics) of every rank equal.
    ///
    /// # Errors
    /// If communication fails.
    fn before_evaluation(&mut self, model: &mut Model<F>) -> Result<()>;

    /// Called after the optimiser's step.
    ///
    /// # Errors
    /// If communication fails.
    fn after_step(&mut self, _model: &mut Model<F>) -> Result<()> {
        Ok(())
    }

    /// This rank's state besides the model, by name; equally long on every rank.
    fn hook_state(&mut self) -> Vec<(&'static str, Vec<F>)> {
        Vec::new()
    }

    /// Goes on after `steps` steps from what [`Strategy::hook_state`] gave.
    fn load_hook_state(&mut self, _steps: u64, _values: &[Vec<F>]) {}

    /// Takes back what the last step changed of what this rank remembers: the step was skipped.
    fn undo(&mut self) {}

    /// Multiplies remembered errors, which are in units of the loss scale.
    fn rescale(&mut self, _by: F) {}

    /// Whether weights, and so the optimiser's state, are each rank's own between two steps.
    fn replicas_diverge(&self) -> bool {
        false
    }

    /// The parameters that no rank used in the last step: the optimiser leaves them alone.
    fn unused(&self) -> &[usize] {
        &[]
    }

    /// Bytes that it holds between two steps beside the model.
    fn bytes(&self) -> u64 {
        0
    }

    /// The times of each bucket in the last step.
    fn buckets(&self) -> &[BucketTimes] {
        &[]
    }
}

/// The strategy that `config` asks for.
///
/// # Errors
/// If no strategy has that name, or it does not fit the number of ranks.
pub fn build<'a, F: Float>(
    config: &Config,
    network: &Network<F>,
    comm: &'a Communicator,
) -> Result<Box<dyn Strategy<F> + 'a>> {
    fits(config, comm.size())?;
    match config.strategy.as_str() {
        "single" => Ok(Box::new(single::Single::new(comm))),
        "ddp" => Ok(Box::new(ddp::Ddp::new(network, config, comm))),
        // The engine exchanges; the host's model is evaluated alone.
        _ if on_engine(config) => Ok(Box::new(single::Single::new(comm))),
        other => Err(crate::unknown::unknown("strategy", other, names())),
    }
}
