//! A discrete-event model of data transfers in virtual time: a topology of ranks, switches and links, transfers that share the
//! links, and the costs of messages, collectives and computation.
//!
//! This crate models time, links and bytes; payloads and collectives are in other crates. The simulation is deterministic: time
//! is an integer count of picoseconds, rates are integer bytes per second, and nothing here reads a clock, iterates a hash map or
//! draws an unseeded number.
//!
//! Two transfers to one rank share that rank's port, and the second becomes faster when the first has ended:
//!
//! ```
//! use allfold_sim::{Bytes, Crossing, FlowNetwork, Picos, Rank, Sharing, Topology};
//!
//! let topology = Topology::named("switch", 3)?;
//! let links = topology.families().iter().flat_map(|f| std::iter::repeat_n(f.link.bandwidth, f.count as usize));
//! let mut network = FlowNetwork::new(links, Sharing::MaxMin);
//! for (from, bytes) in [(0, 300_000), (1, 600_000)] {
//!     let mut path = Vec::new();
//!     topology.route(Rank(from), Rank(2), &mut path);
//!     let path: Vec<Crossing> = path.into_iter().map(|link| Crossing { link, weight: 1 }).collect();
//!     network.begin(Picos::ZERO, &path, Bytes(bytes));
//! }
//! network.settle(Picos::ZERO);
//! let mut through = Vec::new();
//! let mut ends = Vec::new();
//! while let Some(now) = network.next_finish() {
//!     network.take_finished(now, &mut through);
//!     network.settle(now);
//!     ends.push(now.as_micros());
//! }
//! assert_eq!(ends, [2.0, 3.0]); // 300 GB/s: 300 kB at half of it, then 300 kB more at all of it
//! # Ok::<(), allfold_sim::Error>(())
//! ```

pub mod catalogue;
mod costs;
mod crossing;
mod device;
mod error;
mod events;
pub mod fault;
pub mod files;
pub mod machines;
pub mod network;
pub mod quantity;
pub mod topology;
mod trace;
pub mod transit;

pub use allfold_base::{
    Bytes, BytesPerSec, Picos, Rank, expected, fnv1a, hash, json_error, line_and_column, located, named,
    read_at_most, read_text_at_most, suggest,
};
pub use costs::{Costs, Rounding, Sharing};
pub use crossing::Crossing;
pub use device::{Device, DeviceWork};
pub use error::Error;
pub use events::EventHash;
pub use fault::{Factor, Faults, Rule};
pub use network::{FlowId, FlowNetwork};
pub use topology::{Link, LinkId, Topology};
pub use trace::{ChromeTrace, Stretch};
pub use transit::Transit;

/// The result of a fallible function of this crate.
pub type Result<T> = std::result::Result<T, Error>;
