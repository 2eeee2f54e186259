//! Transports: how one rank's bytes reach the other ranks.
//!
//! ```text
//! Connection     a rank's connection to its peers in one group
//!   |-- Transport      messages; every backend has them
//!   |     |-- Direct         without copies: TCP
//!   |     |-- Native         a collective that the backend itself provides: MPI
//!   |     |-- VirtualTime    local copies take time as well: the simulator
//!   |     \-- Monitor        failures and deadlines, for collectives without messages
//!   \-- SharedMemory   a whole collective in memory that all ranks share: threads, processes of one host
//! ```
//!
//! `communicator::path` chooses one of these when a call is prepared.

mod capabilities;
mod connection;
mod memory;
mod messages;
mod payload;
mod shared_memory;

#[cfg(feature = "mpi")]
pub(crate) use capabilities::Native;
pub(crate) use capabilities::{CallHeader, Monitor, VirtualTime};
pub(crate) use connection::Connection;
pub(crate) use memory::{Memory, NoMemory};
pub(crate) use messages::{Direct, Event, Frame, POINT_TO_POINT, Transport};
pub(crate) use payload::{Payload, Pool};
pub(crate) use shared_memory::SharedMemory;
