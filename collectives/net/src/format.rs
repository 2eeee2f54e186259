//! The sizes that connections are made for, and the version of all that travels.

/// Bytes of the header in front of everything that two ranks send each other.
pub const HEADER: usize = 64;
/// The most payload one frame carries: so little that a fragment is summed, sent, received, summed and reduced while it
/// is in a core's second-level cache, also where two ranks share the core.
pub const FRAGMENT: usize = 128 << 10;
/// Both sides must speak this version.
pub const VERSION: u8 = 3;
