//! Messages between their start and their arrival: one life cycle and one fault state for every event engine.
//!
//! ```text
//! start --overhead--> flow --bytes on their links--> left --latency, lateness, reduction--> arrived
//! channel busy --------------------------------------|
//!
//! dropped     leaves and never arrives            duplicated   holds its channel and its links once more
//! corrupted   arrives with another checksum       late         arrives later, and so do those behind it in its channel
//! ```
//!
//! An engine owns channels and an event queue, and says when a message starts. [`Transit`] owns the network, the messages
//! under way and, where fault rules do more than slow ranks and links once and for all, the [`FaultState`]; it says when a
//! message that has left arrives. What a message carries beside its bytes is the engine's own.

mod fault_state;
mod in_flight;
#[cfg(test)]
mod tests;

pub use fault_state::{FaultState, MessageFault};
pub use in_flight::{InFlight, Leaving, Transit};
