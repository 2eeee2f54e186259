//! A prediction of how long a call takes: NCCL's choice, on physical links with named terms.
//!
//! The tuner only ranks candidates. This model takes the tuner's choice and predicts its time from the links, the NIC family, the
//! host and the protocol. Every parameter has a source; fitted parameters are physical quantities and are shared by all machines of
//! a kind.

mod case;
mod closed;
mod matching;
mod parameters;
mod simulated;
mod terms;

pub use case::{CallMachine, PhysicsCase, Setting};
pub use closed::closed;
pub use matching::STORED;
pub use parameters::{COUNT, PARAMETERS, Parameter, Parameters};
pub use simulated::{Simulated, simulated};
pub use terms::{ModelTerm, Terms};
