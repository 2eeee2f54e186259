//! What the executor and the communicator need of a backend.
//!
//! ```text
//! Connection     a rank's ways to its peers in one group
//!   |-- Transport      messages; every backend has them
//!   |     |-- Direct         without copies: TCP
//!   |     |-- Native         a whole collective of the place where the ranks run: MPI
//!   |     |-- VirtualTime    what moves within a rank takes time as well: the simulator
//!   |     \-- Monitor        failures and deadlines, for a collective that goes without messages
//!   \-- SharedMemory   a whole collective in memory that all ranks share: threads, processes of one host
//! ```
//!
//! Which of these a call takes is decided once, when it is prepared: `communicator::path`.

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
pub(crate) use messages::{Direct, Event, Frame, LETTERS, Transport};
pub(crate) use payload::{Payload, Pool};
pub(crate) use shared_memory::SharedMemory;
