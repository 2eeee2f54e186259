//! Virtual time for bytes on links: a topology of ranks, switches and links, transfers that share them, and
//! what each costs.
//!
//! This crate knows time, links and bytes. It holds no payload and has never heard of a collective.
//! All of it is deterministic: time is an integer count of picoseconds, rates are integer bytes per second,
//! and nothing here reads a clock, iterates a hash map or draws an unseeded number.

mod costs;
mod crossing;
mod device;
mod error;
mod events;
mod fault;
pub mod network;
mod suggest;
pub mod topology;
mod trace;
mod units;

pub use costs::{Costs, Rounding, Sharing};
pub use crossing::Crossing;
pub use device::{Device, Work};
pub use error::Error;
pub use events::{Divergence, Event, EventHash, same_twice};
pub use fault::{Factor, Faults, Rule};
pub use network::{FlowId, Network};
pub use topology::{Link, LinkId, Topology};
pub use trace::{ChromeTrace, Stretch};
pub use units::{Bytes, BytesPerSec, Picos, Rank};

/// The result of anything in this crate.
pub type Result<T> = std::result::Result<T, Error>;
