//! Seeded fault schedules: a collective, a machine and one to three faults drawn from a number, run on virtual time with
//! real data, and held to the contract.
//!
//! ```text
//! seed --> case --> every rank: right result, or error with culprit --> verdict: no hang, no wrong result, culprits named
//! ```
//!
//! The contract: every collective, on every surviving rank, returns by its deadline with the right result or with an error
//! that names the first culprit. A seed replays its schedule, to the bit.

mod case;
mod ended;
mod judge;
mod run;

pub use case::FaultCase;
pub use ended::Ended;
pub use judge::{FaultVerdict, Tally};
pub use run::run;
