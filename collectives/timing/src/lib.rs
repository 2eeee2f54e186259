//! When every rank is done: a schedule interpreted on virtual time, with no threads and no data.
//!
//! ```text
//! simulate --> merge_lanes one lane for all that are alike; then
//!          |-> by_symmetry one rank per symmetry class of schedule and topology; these then run on
//!          |-> clocks    a clock per rank: where no link is ever shared; tens of millions of messages a second
//!          |-> events    an event queue: links shared, windows, lanes
//!          '-> serial_links   when asked for: links that serve one message at a time, pipelines of any size
//! ```
//!
//! All follow the execution rule and the timing of a message that `docs/ARCHITECTURE.md` gives, so where two of
//! them apply they agree to the picosecond; `serial_links` is a rule of its own for links, and agrees where none is shared. Every run is held against [`Bounds`]: a time that no machine could
//! reach is an error of ours, and is reported as one.
//!
//! ```
//! use allfold_schedules::registry::{self, Shape};
//! use allfold_schedules::{Collective, Geometry};
//! use allfold_sim::Topology;
//! use allfold_timing::{Engine, Job, simulate};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let schedule = registry::find(Collective::AllReduce, "ring")?.build(Shape::new(1_024)?);
//! let geometry = Geometry::whole(&schedule, 1 << 28);
//! let topology = Topology::named("nodes8", 1_024)?;
//! let outcome = simulate(&Job::new(&schedule, &geometry, 4, &topology), Engine::Auto)?;
//! assert_eq!(outcome.time.to_string(), "96870.460 us");
//! # Ok(())
//! # }
//! ```
//!
//! This crate starts no thread, reads no clock of the machine and holds no payload.

pub mod astra;
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
