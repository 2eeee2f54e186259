//! Messages between their start and their arrival: one life cycle and one fault state for every event engine.
//!
//! ```text
//! start --overhead--> flow --bytes on their links--> left --latency, lateness, reduction--> arrived
//! channel busy --------------------------------------|
//!
//! dropped     leaves and never arrives            duplicated   holds its channel and its links once more
//! corrupted   arrives with another checksum       late         arrives later, as do later messages of the channel
//! ```
//!
//! An engine owns channels and an event queue, and starts messages. [`Transit`] owns the network, the messages under way and, if
//! fault rules do more than slow ranks and links down permanently, the [`FaultState`]; it computes when a message that has left
//! arrives. All other data of a message belongs to the engine.

mod fault_state;
mod in_flight;
#[cfg(test)]
mod tests;

pub use fault_state::{FaultState, MessageFault};
pub use in_flight::{InFlight, Leaving, Transit};
