//! The messages of a parameter server: servers send parameters of a unit to workers, and workers send its gradient to servers.
//!
//! Each server has a part of every unit. A worker and all servers share a communicator, so that no worker's messages wait for
//! another's.

use crate::{Error, Result};
use std::time::Duration;

/// The servers and workers of a parameter server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServingRole {
    /// The number of servers.
    pub servers: usize,
    /// The number of workers.
    pub workers: usize,
    /// The number of this rank among the servers, if it is one.
    pub server: Option<usize>,
}

/// The operations of a rank of a parameter server besides those of a [`RankEngine`](super::RankEngine).
pub trait Serving {
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
    /// A gradient that the rank does not have; failed communication.
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

    /// On a server: waits until all gradients that are [expected](Serving::expect) of one of these workers have arrived. Returns
    /// the worker whose gradients arrived first.
    ///
    /// # Errors
    /// No workers, or one from which nothing is expected.
    fn first_pushed(&mut self, workers: &[usize]) -> Result<usize>;

    /// On a server: waits for the gradients that are expected of a worker, and adds them to this step's sum.
    ///
    /// # Errors
    /// Failed communication.
    fn take_push(&mut self, worker: usize) -> Result<()>;

    /// On a server: updates the parameters with the sum of the gradients, and starts a new sum.
    ///
    /// # Errors
    /// Failed communication.
    fn apply_pushes(&mut self) -> Result<()>;
}

/// The first of these workers for which `has_arrived` returns true. Checks the workers in turn until one has arrived.
///
/// # Errors
/// No workers; those of `has_arrived`.
pub fn first_of(workers: &[usize], mut has_arrived: impl FnMut(usize) -> Result<bool>) -> Result<usize> {
    if workers.is_empty() {
        return Err(nobody_expected());
    }
    let mut round = 0u32;
    loop {
        for &worker in workers {
            if has_arrived(worker)? {
                return Ok(worker);
            }
        }
        match round {
            0..256 => std::thread::yield_now(),
            _ => std::thread::park_timeout(Duration::from_micros(50)),
        }
        round = round.saturating_add(1);
    }
}

pub(crate) fn nobody_expected() -> Error {
    Error::Strategy("the server waits for a gradient, but no worker is expected to send one".into())
}

/// The messages of a rank that are under way.
pub struct RankMessages<M> {
    /// Messages that were sent and may not have arrived yet.
    pub sent: Vec<M>,
    /// On a worker, for each unit: its parameters from each server.
    pub pulls: Vec<Vec<M>>,
    /// On a server, for each worker: the gradients of units that are expected of the worker.
    pub expected: Vec<Vec<(usize, M)>>,
    /// On a server, for each worker: the parameters sent to the worker.
    pub served: Vec<Vec<M>>,
}

impl<M> Default for RankMessages<M> {
    fn default() -> Self {
        RankMessages { sent: Vec::new(), pulls: Vec::new(), expected: Vec::new(), served: Vec::new() }
    }
}

/// The list at index `at`, which is added if it does not exist.
pub fn nth<T>(lists: &mut Vec<Vec<T>>, at: usize) -> &mut Vec<T> {
    if lists.len() <= at {
        lists.resize_with(at + 1, Vec::new);
    }
    &mut lists[at]
}
