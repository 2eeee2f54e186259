//! Links, their bandwidth and latency, and the families that group equal links.

use crate::{BytesPerSec, Picos};

/// A directed link, numbered densely from 0 over all families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// The bandwidth and latency of a directed link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Bandwidth in bytes per second.
    pub bandwidth: BytesPerSec,
    /// Latency of this link, added once per message of any size.
    pub latency: Picos,
}

/// A family of equal links. Link `first + i` serves the ranks `i * block .. (i + 1) * block`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// The family's name: `up`, `down`, `nic_out`, ...
    pub name: String,
    /// The number of the family's first link.
    pub first: u32,
    /// The number of consecutive ranks that share one link.
    pub block: u32,
    /// The number of links: `ranks / block`, rounded up.
    pub count: u32,
    /// Bandwidth and latency of each link of the family.
    pub link: Link,
}
