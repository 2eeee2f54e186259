//! How long a call really takes: NCCL's choice, on physical links with named terms.
//!
//! The tuner ranks candidates and is no clock. This model takes its choice and asks what the links, the NICs' family,
//! the host and the protocol make of it. Every parameter has a source; what is fitted is physical and shared by all
//! machines of a kind.

mod case;
mod closed;
mod matching;
mod parameters;
mod simulated;
mod terms;

pub use case::{PhysicsCase, Setting};
pub use closed::closed;
pub use matching::STORED;
pub use parameters::{COUNT, PARAMETERS, Parameter, Parameters};
pub use simulated::{Simulated, simulated};
pub use terms::{ModelTerm, Terms};
