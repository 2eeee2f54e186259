//! Connections between the processes of one job: found by the launcher's environment, authenticated, and optionally encrypted.
//!
//! ```text
//! environment           the variables of torchrun, Slurm, Open MPI or PMI: a process' rank and the rendezvous address
//! rendezvous            one process listens, all others connect, and every process gets the table of addresses
//! authenticated_stream  TcpStream -- handshake under the job's secret -- (TLS 1.3, bound to it) -- bytes both ways
//! peer_stream           the same, non-blocking; between processes of one host through shared memory
//! ```
//!
//! This crate handles bytes and their sender; it contains nothing about collectives. It trusts no length that arrives over a connection.
//!
//! ```
//! use allfold_net::environment::Environment;
//!
//! let variables = [("RANK", "3"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node0"), ("MASTER_PORT", "29500")];
//! let lookup = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string());
//! let told = Environment::read(lookup)?.expect("a launcher's variables");
//! assert_eq!((told.rank.0, told.world_size, told.rendezvous_address.to_string()), (3, 8, "node0:29500".into()));
//! # Ok::<(), allfold_net::Error>(())
//! ```

pub mod accept_queue;
mod authenticated_stream;
mod crypto;
mod duplex;
pub mod environment;
mod error;
mod format;
pub mod handshake;
mod hidden;
pub mod peer_stream;
pub mod rendezvous;
pub mod running_time;
mod security;
mod segment_handle;
pub mod shared_memory_link;
pub mod socket;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

pub use allfold_base::Rank;
pub use authenticated_stream::{AuthenticatedStream, Authenticator};
pub use crypto::random;
pub use duplex::duplex;
pub use error::{Error, Result};
pub use format::{FRAGMENT, HEADER, VERSION};
pub use handshake::{HandshakeAnswer, IncompatiblePeer, PeerIdentity, Purpose, Refusal};
pub use security::{Secret, Security};
pub use segment_handle::{Host, SegmentHandle};
