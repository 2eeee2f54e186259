//! One rank's part of a step: the operations that a strategy can request of the device on which its rank computes.
//!
//! ```text
//! driver (plain, pipeline, data_parallel)     which phases run, in which order, and what stages send each other
//!    '-- sharing (ddp, zero1, zero2, zero3)   what becomes of parameters and gradients over the data axis
//!          '-- RankEngine                     runs phases, holds units and micro-batches in flight, exchanges them
//!                |-- Worker                   the engine of the CPU
//!                |-- GpuWorker                the engine of GPUs: `crate::cuda`
//!                '-- ClockRank                time alone, without arithmetic: `allfold-prediction`
//! ```
//!
//! A *unit* is a run of layers whose parameters lie in one buffer: exchanged together, gathered together, freed together. A
//! *slot* holds the activations of one micro-batch in flight.

mod bucket_exchange;
mod bucketing;
mod free_buffers;
mod groups;
mod observed;
mod parameter_messages;
mod part;
mod passes;
mod peers;
mod place;
mod rank;
mod serving;
mod slot;
mod transfer;
mod unit;
mod unit_layout;
mod update;
mod worker;

pub use allfold_networks::{AxisPosition, Mesh, MeshAxis, NetworkSplit};
#[cfg(test)]
pub(crate) use bucket_exchange::COPIES;
pub use bucketing::Bucketing;
pub use free_buffers::FreeBuffers;
pub use groups::MeshGroups;
pub use place::RankPlace;
pub use serving::{RankMessages, Serving, ServingRole, first_of, nth};
pub use slot::{ActivationReaders, TensorUses, readers};
#[cfg(feature = "cuda")]
pub(crate) use transfer::{part_of, share_parts};
pub use unit_layout::{
    Keep, ParamUnit, UnitLayout, filled_micro_batches, micro_batch, trained_parts, units_of_layers,
};
pub(crate) use worker::Worker;
pub use worker::{StepInput, StepResult};

use crate::{Outline, Phase, Result};
use std::sync::Arc;

/// A micro-batch in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub usize);

/// An exchange of a whole unit over the data axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitExchange {
    /// Every rank gets the mean of the gradient.
    AllReduceGrad,
    /// Every rank gets its own part of the mean of the gradient.
    ReduceScatterGrad,
    /// Every rank gets the whole parameters, from the parts of all ranks.
    GatherParams,
}

/// An activation, or a gradient with respect to it, that one rank sends to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// The activation of this number.
    Activation(usize),
    /// The gradient of the loss with respect to the activation of this number.
    Gradient(usize),
}

/// The other end of a message: an axis of the mesh, the peer's position on that axis, and the communicator for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The axis along which the message is sent.
    pub axis: MeshAxis,
    /// The peer's position on the axis.
    pub peer: usize,
    /// The number of the communicator that carries the message; each communicator carries its messages in order.
    pub channel: usize,
}

/// The operations of a rank that a strategy can use.
pub trait RankEngine: Serving + Bucketing {
    /// The rank's place in the mesh, and its units.
    fn place(&self) -> &RankPlace;

    /// The network's structure.
    fn outline(&self) -> Arc<Outline> {
        self.place().outline.clone()
    }

    /// This rank's position on an axis of the mesh. An axis that the mesh does not have has size 1.
    fn position(&self, axis: MeshAxis) -> AxisPosition {
        self.place().position(axis)
    }

    /// The units, in order of layers.
    fn units(&self) -> &[ParamUnit] {
        &self.place().units
    }

    /// The number of the step in the run, from 0.
    fn step_number(&self) -> u64;

    /// The number of steps, with this one, until all ranks synchronise: at the end of an epoch, or for a checkpoint.
    fn steps_left(&self) -> u64;

    /// The unit whose parameters a phase reads or whose gradient it computes, if it does either.
    fn unit_of(&self, phase: Phase) -> Option<usize> {
        self.place().unit_of(phase)
    }

    /// Whether other stages hold a copy of a trained unit. The gradient is then the sum over all copies.
    fn is_copied(&self, unit: usize) -> bool;

    /// The number of micro-batches with samples, if this rank's batch is cut into `of`. With the keys `uneven` and `parallel.shares` it is
    /// always `of`, so that all ranks run the same number.
    fn micro_batches(&self, of: usize) -> usize;

    /// Loads micro-batch `micro` of the `of` micro-batches that this rank's batch is cut into. If the batch has too few samples,
    /// the last micro-batches are empty.
    ///
    /// # Errors
    /// A batch that is too small for a layer's normalisation.
    fn load(&mut self, micro: usize, of: usize, slot: Slot) -> Result<()>;

    /// Runs a phase of a micro-batch. [`Phase::Ready`] takes the time in which the parameter's gradient was added to that of the
    /// previous micro-batches. The totals of a synchronised layer are summed over the data axis.
    ///
    /// # Errors
    /// Parameters or activations that the rank does not have; failed communication.
    fn run(&mut self, phase: Phase, slot: Slot) -> Result<()>;

    /// Frees all tensors of a micro-batch.
    fn forget(&mut self, slot: Slot);

    /// Starts an exchange of a unit. The unit's tensor cannot be used until [`RankEngine::finish`]. Every rank of the data axis
    /// starts the same exchanges in the same order.
    ///
    /// # Errors
    /// A tensor that the rank does not have; failed communication.
    fn start(&mut self, exchange: UnitExchange, unit: usize) -> Result<()>;

    /// Waits for an exchange that was started and not finished, and stores its result. If the rank keeps only a part of the unit's
    /// gradient, that part of the reduced gradient is added to the part that it keeps, and the rest is freed.
    ///
    /// # Errors
    /// Failed communication.
    fn finish(&mut self, exchange: UnitExchange, unit: usize) -> Result<()>;

    /// Frees the whole parameters of a unit of which this rank keeps a part.
    fn release(&mut self, unit: usize);

    /// Where several copies are sharded, starts the sum of this rank's part of a unit's final gradient over the ranks that hold the
    /// same part. [`RankEngine::update`] waits for these sums, and starts those that are not started: all of them on GPUs.
    ///
    /// # Errors
    /// Failed communication.
    fn start_replica_sum(&mut self, _unit: usize) -> Result<()> {
        Ok(())
    }

    /// Replaces the gradient of a unit by its sum over all stages that hold a copy of the unit. Each of these stages must call it.
    ///
    /// # Errors
    /// Failed communication.
    fn sum_copies(&mut self, unit: usize) -> Result<()>;

    /// Sends a tensor of a micro-batch, without waiting until it has arrived.
    ///
    /// # Errors
    /// A tensor that the rank does not have; failed communication.
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

    /// Waits for the messages that were sent, then updates this rank's parameters. Gradients are unscaled, then clipped by their
    /// norm over all ranks. With a loss scale, no rank updates if any rank has a gradient that is not finite.
    ///
    /// # Errors
    /// Failed communication.
    fn update(&mut self) -> Result<()>;
}
