//! Links: what one can do, and the families that they come in.

use crate::{BytesPerSec, Picos};

/// A directed link, numbered densely from 0 over all families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// What one directed link can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Bytes per second.
    pub bandwidth: BytesPerSec,
    /// Time of flight over this link, added once per message of any size.
    pub latency: Picos,
}

/// Links of one kind. Link `first + i` serves the ranks `i * block .. (i + 1) * block`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// What the links are called: `up`, `down`, `nic_out`, ...
    pub name: String,
    /// Number of the first link.
    pub first: u32,
    /// How many consecutive ranks share one link.
    pub block: u32,
    /// How many links: `ranks / block`, rounded up.
    pub count: u32,
    /// Bandwidth and latency of each of these links.
    pub link: Link,
}
