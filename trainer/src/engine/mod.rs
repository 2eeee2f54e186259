//! One rank's half of a step: what a strategy can ask of the device that its rank computes on.
//!
//! ```text
//! driver (plain, pipeline, data_parallel)     which phases run, in which order, and what stages send each other
//!    '-- sharing (ddp, zero1, zero2, zero3)   what becomes of parameters and gradients over the data axis
//!          '-- RankEngine                     runs phases, holds units and micro-batches in flight, exchanges them
//!                '-- Worker                   the engine of the CPU
//! ```
//!
//! A *unit* is a run of layers whose parameters lie in one buffer: exchanged together, gathered together, freed together. A
//! *slot* holds the activations of one micro-batch in flight.

mod groups;
mod mesh;
mod observed;
mod parameter_messages;
mod passes;
mod peers;
mod rank;
mod serving;
mod slot;
mod transfer;
mod unit;
mod update;
mod worker;

pub use mesh::{AxisPosition, Mesh, MeshAxis};
pub use serving::{Serving, ServingRole};
pub(crate) use worker::{NetworkSplit, StepInput, Worker};

use crate::{Outline, Phase, Result};
use std::ops::Range;
use std::sync::Arc;

/// A micro-batch in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub usize);

/// What a rank keeps of a unit between steps. Sharded tensors are cut into equal parts over the data axis, of which a rank keeps
/// its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Parameters, gradients and optimiser state.
    Whole,
    /// Parameters and gradients; a part of the optimiser state.
    ShardedState,
    /// Parameters; a part of gradients and optimiser state.
    ShardedGradients,
    /// A part of parameters, gradients and optimiser state.
    Sharded,
    /// The first rank of the data axis keeps everything. The others keep copies of its parameters and their parts of the
    /// gradients, and no optimiser state.
    First,
    /// A copy of the parameters, and the gradients of this rank's samples. Servers keep the parameters and the optimiser state.
    Copy,
    /// Nothing: other stages of a pipeline hold the unit.
    Nothing,
}

/// Layers whose parameters lie in one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamUnit {
    /// The layers, by number.
    pub layers: Range<usize>,
    /// What this rank keeps of the unit.
    pub keep: Keep,
}

/// An exchange of a whole unit over the data axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitExchange {
    /// The mean of the gradient, on every rank.
    AllReduceGrad,
    /// The mean of the gradient, of which every rank gets its own part.
    ReduceScatterGrad,
    /// The parameters, from the parts of all ranks.
    GatherParams,
}

/// An activation, or a gradient by it, that one rank sends to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// The activation of this number.
    Activation(usize),
    /// The loss's gradient by the activation of this number.
    Gradient(usize),
}

/// The other end of a message: an axis of the mesh, the position of the peer on it, and the communicator that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The axis along which the message goes.
    pub axis: MeshAxis,
    /// The peer's position on the axis.
    pub peer: usize,
    /// The communicator among those of the axis that carries messages; each carries its messages in order.
    pub channel: usize,
}

/// What a strategy sees of its rank.
pub trait RankEngine: Serving {
    /// The network's structure.
    fn outline(&self) -> Arc<Outline>;

    /// This rank's place on an axis of the mesh. An axis that the mesh does not have has size 1.
    fn position(&self, axis: MeshAxis) -> AxisPosition;

    /// The units, in order of layers.
    fn units(&self) -> &[ParamUnit];

    /// Steps, this one included, until all ranks meet: at the end of an epoch, or for a checkpoint.
    fn steps_left(&self) -> u64;

    /// The unit whose parameters a phase reads or whose gradient it computes, if it does either.
    fn unit_of(&self, phase: Phase) -> Option<usize>;

    /// Whether other stages hold a copy of a unit that is trained: then its gradient is the sum of all of theirs.
    fn is_copied(&self, unit: usize) -> bool;

    /// How many micro-batches with samples this rank's batch makes, cut into `of`.
    fn micro_batches(&self, of: usize) -> usize;

    /// Loads micro-batch `micro` of the `of` that this rank's batch is cut into. A batch of too few samples leaves the last ones
    /// empty.
    ///
    /// # Errors
    /// A batch by which a layer cannot normalise.
    fn load(&mut self, micro: usize, of: usize, slot: Slot) -> Result<()>;

    /// Runs a phase of a micro-batch. The totals of a synchronised layer are summed over the data axis.
    ///
    /// # Errors
    /// Parameters or activations that are not there; failed communication.
    fn run(&mut self, phase: Phase, slot: Slot) -> Result<()>;

    /// Frees all of a micro-batch.
    fn forget(&mut self, slot: Slot);

    /// Starts an exchange of a unit; the unit's tensor is away until [`RankEngine::finish`]. Every rank of the data axis starts
    /// the same exchanges in the same order.
    ///
    /// # Errors
    /// A tensor that is not there; failed communication.
    fn start(&mut self, exchange: UnitExchange, unit: usize) -> Result<()>;

    /// Waits for an exchange that was started and not finished, and stores its result. If the unit keeps a part of its
    /// gradient, its part of the reduced gradient is added to what it has, and the rest is freed.
    ///
    /// # Errors
    /// Failed communication.
    fn finish(&mut self, exchange: UnitExchange, unit: usize) -> Result<()>;

    /// Frees the parameters of a unit that keeps a part of them.
    fn release(&mut self, unit: usize);

    /// Replaces, on this stage and on every other that holds a copy of the unit, the gradient by the sum of all of theirs.
    ///
    /// # Errors
    /// Failed communication.
    fn sum_copies(&mut self, unit: usize) -> Result<()>;

    /// Sends a tensor of a micro-batch, without waiting until it has arrived.
    ///
    /// # Errors
    /// A tensor that is not there; failed communication.
    fn send(&mut self, what: Boundary, slot: Slot, to: Route) -> Result<()>;

    /// Waits for a tensor of a micro-batch.
    ///
    /// # Errors
    /// Failed communication.
    fn receive(&mut self, what: Boundary, slot: Slot, from: Route) -> Result<()>;

    /// Replaces the parameters of a unit by those of the first rank of the data axis.
    ///
    /// # Errors
    /// Failed communication.
    fn broadcast(&mut self, unit: usize) -> Result<()>;

    /// Replaces the gradient of a unit on the first rank of the data axis by the sum over all ranks.
    ///
    /// # Errors
    /// Failed communication.
    fn reduce(&mut self, unit: usize) -> Result<()>;

    /// Waits for all that was sent, then moves this rank's parameters: gradients are unscaled and clipped by their norm over all
    /// ranks, and no rank moves where one has found a gradient that is not finite.
    ///
    /// # Errors
    /// Failed communication.
    fn update(&mut self) -> Result<()>;
}
