//! The rendezvous: processes find each other through one host and port that all of them have been given.
//!
//! ```text
//! rank 0   hello: rank, size, epoch, my port  ->            server at MASTER_ADDR:MASTER_PORT
//! rank 1   hello ............................ ->            (rank 0's own, or the launcher's)
//! rank 2   hello ............................ ->
//!          <-  table: everyone's address and host           once all are here and agree; else one refusal each
//! ```
//!
//! Every process sends its settings of the world, which must be the same on all: size, epoch, job, configuration, version. The server
//! reads nothing from a connection before the other side has proved the job's secret (`crate::authenticated_stream`). No message contains
//! its own length: every message has a size that its reader can compute.

mod client;
mod failure;
mod messages;
mod server;
#[cfg(test)]
mod tests;

pub use client::{address_for, call};
pub use failure::RendezvousFailure;

pub use client::{Joined, join};
pub use messages::{Hello, PeerKind};
pub use server::serve_world;
pub use server::{Caller, Launching, Server};

use crate::Rank;
use crate::{Authenticator, PeerIdentity, Purpose, Security, SegmentHandle};
use std::net::SocketAddr;
use std::time::Duration;

/// The timeouts of a rendezvous.
#[derive(Clone, Copy, Debug)]
pub struct RendezvousTimeouts {
    /// The time for a rank to reach the server, and as long again, from the first rank on, for all ranks to arrive.
    pub rendezvous: Duration,
    /// The time for the handshake of one connection.
    pub handshake: Duration,
}

impl Default for RendezvousTimeouts {
    fn default() -> RendezvousTimeouts {
        RendezvousTimeouts { rendezvous: Duration::from_secs(60), handshake: Duration::from_secs(5) }
    }
}

/// The authenticator of a rendezvous, for a process of the job.
///
/// # Errors
/// The certificate cannot be made.
pub fn authenticator(security: &Security, timeout: RendezvousTimeouts) -> crate::Result<Authenticator> {
    Authenticator::new(security.clone(), timeout.handshake)
}

/// The identity of every caller: only the purpose of the connection.
fn identity() -> PeerIdentity {
    let purpose = Purpose::Rendezvous;
    PeerIdentity {
        purpose,
        job: [0; 16],
        epoch: 0,
        size: 0,
        rank: Rank(0),
        peer: Rank(0),
        group: 0,
        memory: SegmentHandle::default(),
    }
}

/// The address of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's rank.
    pub rank: Rank,
    /// The address at which the peer listens.
    pub address: SocketAddr,
    /// The host's identity, equal for all ranks of one host.
    pub host: [u8; 16],
}

/// The table of all ranks, which the server sends to every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// A random number of this world, which distinguishes it from earlier worlds.
    pub world: [u8; 16],
    /// The epoch of the world.
    pub epoch: u32,
    /// The peers, in order of ranks.
    pub peers: Vec<Peer>,
}
