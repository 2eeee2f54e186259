//! Simulates a collective's schedule in virtual time, without threads or data, and computes when each rank is done.
//!
//! ```text
//! simulate --> merge_lanes   one lane represents all equal lanes, or two that mirror each other (mirrored_lanes); then
//!          |-> by_symmetry   one rank per symmetry class of schedule and topology; these then run on
//!          |-> clocks        a clock per rank: if no link is ever shared; tens of millions of messages per second
//!          |-> events        an event queue: links shared, windows, lanes
//!          '-> serial_links  on request: links that serve one message at a time, pipelines of any size
//! ```
//!
//! All engines follow the execution rule and the timing of a message in `docs/ARCHITECTURE.md`, so engines that apply to the same
//! job agree to the picosecond. `serial_links` has its own rule for links and agrees if no link is shared. Every result is compared
//! with its [`Bounds`]: a time that no machine could reach is a bug of the simulator and is reported as an error.
//!
//! ```
//! use allfold_schedules::registry::{self, Shape};
//! use allfold_schedules::{Collective, Geometry};
//! use allfold_sim::Topology;
//! use allfold_timing::{Engine, Job, simulate};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let schedule = registry::find(Collective::AllReduce, "ring")?.build(Shape::new(1_024)?)?;
//! let geometry = Geometry::whole(&schedule, 1 << 28);
//! let topology = Topology::named("nodes8", 1_024)?;
//! let outcome = simulate(&Job::new(&schedule, &geometry, 4, &topology), Engine::Auto)?;
//! assert_eq!(outcome.time.to_string(), "96870.460 us");
//! # Ok(())
//! # }
//! ```
//!
//! This crate starts no threads, reads no clock of the machine and holds no payload.

mod bounds;
mod by_symmetry;
mod classes;
mod clocks;
mod error;
mod events;
mod explain;
mod failure;
mod job;
mod merge_lanes;
mod mirrored_lanes;
mod outcome;
mod owners;
mod rates;
mod representatives;
mod rounds;
mod run;
mod serial_links;
mod simulate;
mod symmetry_classes;
pub mod testing;

pub use bounds::Bounds;
pub use error::Error;
pub use events::{Sent, Sink};
pub use explain::{Explanation, Hop, LinkUse, Parts, explain};
pub use failure::{Cause, Culprit, Failure};
pub use job::{Engine, Job, LinkSharing};
pub use outcome::{Method, Outcome};
pub use representatives::{AllRanks, Representatives};
pub use simulate::{simulate, traced};
