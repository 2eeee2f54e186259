//! NCCL's tuner model: the formula by which NCCL chooses an algorithm and a protocol for a call.
//!
//! ```text
//! time_us = latency + bytes / (1000 x bandwidth)          the (algorithm, protocol) with the least time is chosen
//! latency = base + inner steps x inner latency + outer steps x (outer latency + NIC's)    inner: within a node
//! bandwidth = channels x speed of one, less the protocol's and the algorithm's losses     GB/s
//! ```
//!
//! The tuner model ranks candidates but does not predict real times well: it has no terms for the host's launch, for NIC families or for
//! stragglers. It is therefore a separate predictor, in addition to the simulated schedule, and computes which schedule NCCL would have
//! run. The figures are those of NCCL's `src/graph/tuning.cc` (2.29).
//!
//! ```
//! use allfold_schedules::Collective;
//! use allfold_nccl_model::{NcclAlgorithm, Arch, Graph, Overrides, Platform, Protocol, choose};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let platform = Platform::nvlink(Arch::Ampere, 2, 16, Graph::inside(12, 20.0).across(16.0));
//! let small = choose(&platform, Collective::AllReduce, 8, &Overrides::default())?;
//! assert_eq!((small.algorithm, small.protocol), (NcclAlgorithm::Tree, Protocol::Ll));
//! let ring = Overrides::new("ring", "^LL,LL128")?;
//! let large = choose(&platform, Collective::AllReduce, 1 << 30, &ring)?;
//! assert_eq!(large.protocol, Protocol::Simple);
//! # Ok(())
//! # }
//! ```

mod bandwidth;
mod choice;
mod constants;
mod latency;
pub mod layout;
mod names;
mod overrides;
pub mod physics;
mod platform;
mod search;

pub use choice::{Estimate, NoChoice, TUNED, choose, estimate};
pub use names::{NcclAlgorithm, Protocol};
pub use overrides::{BadOverride, Overrides};
pub use platform::{Arch, Graph, HostCpu, Inside, Platform};
pub use search::Library;

#[cfg(test)]
mod tests;
