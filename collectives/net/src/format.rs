//! The sizes of frames, and the version of the wire format.

/// Bytes of the header in front of every frame between two ranks.
pub const HEADER: usize = 64;
/// The most payload of one frame, in bytes. A fragment is checksummed, sent, received, checksummed and reduced while it is in a core's
/// second-level cache, even if two ranks share the core.
pub const FRAGMENT: usize = 128 << 10;
/// The version of the wire format, which must be the same on both sides.
pub const VERSION: u8 = 3;
