//! Ranks as processes that communicate over TCP, on one host or many.
//!
//! ```text
//!             rank's own thread                                    runtime of the process
//! Communicator -- Endpoint -- PeerConnection per peer == data ==>  accept, connect, handshake, TLS
//!                    |            (frames: frame.rs)               control task per peer == heartbeats, announcements,
//!                 Group: RemoteCallTable, Waker <--------------------------------------------- failures, departures ==>
//! ```
//!
//! Every connection begins with a handshake under the job's secret ([`allfold_net::handshake`]), then carries frames: a header of
//! 64 bytes and its payload (`frame`). Data between ranks of one host go through memory ([`allfold_net::shared_memory_link`]).
//! Control connections are made between all ranks at the start; data connections when two ranks of a group first need one. The thread
//! that calls a collective moves its bytes itself, directly between the kernel and the caller's buffer.

mod agreement;
mod control;
mod endpoint;
mod expected;
mod fault;
mod frame;
#[cfg(any(test, feature = "testing"))]
mod fuzzing;
mod group;
mod groups;
mod joining;
mod local;
mod mailbox;
mod messages;
mod node;
mod options;
mod outbox;
mod peer_connection;
mod proxy;
mod rank;
mod waker;

pub(crate) use allfold_net::random;
pub use allfold_net::{AuthenticatedStream, Authenticator, Host, Secret, Security, duplex};
pub use mailbox::TaggedMessage;
pub use messages::{Messages, Receive};
pub use options::{Deadlines, PeerOptions};

/// The wire format and its decoders, for tests and fuzzers.
#[cfg(any(test, feature = "testing"))]
mod internals {
    pub use super::frame::{FRAGMENT, FrameHeader, HEADER, Kind};
    pub use super::fuzzing::read_anything;
    pub use super::proxy::{FrameDecision, Passing, Proxy, ProxyAction, Rules};
    pub use crate::contract::Fingerprint;
    pub use allfold_net::{HandshakeAnswer, IncompatiblePeer, PeerIdentity, Purpose, Refusal, SegmentHandle};
}
#[cfg(any(test, feature = "testing"))]
pub use internals::*;

pub(crate) use control::runtime;
pub(crate) use local::Local;
pub(crate) use rank::Tcp;
