//! What servers and workers of a parameter server do besides computing: parameters of a unit go one way, its gradient the other way.
//!
//! Each server has a part of every unit. A worker and all servers share a communicator, so that no worker's messages wait for
//! another's.

use crate::Result;
use allfold_collectives::{Buffer, Work};
use allfold_kernels::nn::Float;

/// The servers and workers of a parameter server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServingRole {
    /// Servers.
    pub servers: usize,
    /// Workers.
    pub workers: usize,
    /// The number of this rank among the servers, if it is one.
    pub server: Option<usize>,
}

/// What a rank of a parameter server can do besides a [`RankEngine`](super::RankEngine).
pub trait Serving {
    /// Who there is, and what this rank is.
    fn role(&self) -> ServingRole;

    /// On a worker: begins to receive a unit's parameters from all servers.
    ///
    /// # Errors
    /// Failed communication.
    fn pull(&mut self, unit: usize) -> Result<()>;

    /// On a worker: waits for a unit's parameters that were [pulled](Serving::pull).
    ///
    /// # Errors
    /// Failed communication.
    fn pulled(&mut self, unit: usize) -> Result<()>;

    /// On a worker: divides a unit's gradient by the number of workers and sends each server its part.
    ///
    /// # Errors
    /// A gradient that is not there; failed communication.
    fn push(&mut self, unit: usize) -> Result<()>;

    /// On a server: sends a worker this server's part of a unit's parameters.
    ///
    /// # Errors
    /// Failed communication.
    fn serve(&mut self, unit: usize, worker: usize) -> Result<()>;

    /// On a server: begins to receive this server's part of the gradient of these units, in this order, from a worker.
    ///
    /// # Errors
    /// Failed communication.
    fn expect(&mut self, units: &[usize], worker: usize) -> Result<()>;

    /// On a server: waits until all gradients that are [expected](Serving::expect) of one of these workers are there; which worker
    /// came first.
    ///
    /// # Errors
    /// No workers.
    fn first_pushed(&mut self, workers: &[usize]) -> Result<usize>;

    /// On a server: adds the gradients that are expected of a worker to this step's, and waits for them if they are not there.
    ///
    /// # Errors
    /// Failed communication.
    fn take_push(&mut self, worker: usize) -> Result<()>;

    /// On a server: moves the parameters by the gradients that were taken, and begins new ones.
    ///
    /// # Errors
    /// Failed communication.
    fn apply_pushes(&mut self) -> Result<()>;
}

/// The messages of a parameter server that are under way.
pub(super) struct ServingState<F: Float> {
    /// On a worker, for each unit: its parameters from each server.
    pub pulls: Vec<Vec<Work<Buffer<F>>>>,
    /// On a server, for each worker: the gradients of units that are expected of it, and the parameters that were sent to it.
    pub expected: Vec<Vec<(usize, Work<Buffer<F>>)>>,
    pub served: Vec<Vec<Work<Buffer<F>>>>,
}

impl<F: Float> Default for ServingState<F> {
    fn default() -> Self {
        ServingState { pulls: Vec::new(), expected: Vec::new(), served: Vec::new() }
    }
}
