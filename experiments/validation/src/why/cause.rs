//! The causes for which a run is slow, each with what mends it and what proves it.

use std::fmt;

/// A cause for which a run is slow, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlowCause {
    /// Nothing is wrong.
    Healthy,
    /// NICs do not access GPU memory; bytes are copied through the host's memory.
    NoGpuDirect,
    /// GPUs of a node do not write into each other's memory.
    NoPeer,
    /// A part of the NICs is not used.
    NicsMissing,
    /// One NIC of a node is used.
    OneRail,
    /// One algorithm is forced.
    Algorithm,
    /// One protocol is forced.
    Protocol,
    /// LL128 is not used where the links allow it.
    NoLl128,
    /// NVLink switches do not reduce.
    NoNvls,
    /// Fewer channels run than NCCL would choose.
    FewChannels,
    /// TCP sockets are used in place of the network's own protocol.
    Sockets,
    /// Links or NICs run below their speed, of one rank or of all.
    SlowLinks,
    /// One rank comes late to every call.
    LateRank,
    /// The run is off by more than systems differ, and none of these causes explains it.
    Other,
}

/// Name, remedy and proof of every cause, a line each, in the order of [`SlowCause`].
const WORDS: &str = include_str!("causes.txt");

impl SlowCause {
    /// All causes that can be named.
    pub const ALL: [SlowCause; 12] = [
        SlowCause::NoGpuDirect,
        SlowCause::NoPeer,
        SlowCause::NicsMissing,
        SlowCause::OneRail,
        SlowCause::Algorithm,
        SlowCause::Protocol,
        SlowCause::NoLl128,
        SlowCause::NoNvls,
        SlowCause::FewChannels,
        SlowCause::Sockets,
        SlowCause::SlowLinks,
        SlowCause::LateRank,
    ];

    fn words(self, field: usize) -> &'static str {
        let line = WORDS.lines().filter(|line| !line.starts_with('#')).nth(self as usize);
        line.and_then(|line| line.split(" | ").nth(field)).unwrap_or_default()
    }

    /// The cause's name.
    pub fn name(self) -> &'static str {
        self.words(0)
    }

    /// The setting or the repair that mends it.
    pub fn mend(self) -> &'static str {
        self.words(1)
    }

    /// The setting or the measurement that shows whether it is the cause.
    pub fn proof(self) -> &'static str {
        self.words(2)
    }

    /// Whether a choice of algorithm or protocol alone mends it.
    pub const fn is_choice(self) -> bool {
        matches!(self, SlowCause::Algorithm | SlowCause::Protocol | SlowCause::NoLl128)
    }
}

impl fmt::Display for SlowCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
