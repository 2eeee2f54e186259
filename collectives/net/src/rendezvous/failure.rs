//! Why ranks did not find each other, as errors with one line of text each.

use crate::IncompatiblePeer;
use crate::Rank;
use std::time::Duration;

/// How many numbers a refusal carries at most.
pub(super) const NUMBERS: usize = 32;
/// How many missing ranks are named at most. A refusal that names missing ranks also contains how long the other ranks waited, and how
/// many more ranks are missing.
pub(super) const MISSING: usize = NUMBERS - 2;

/// Why a rendezvous failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousFailure {
    /// Some ranks did not arrive in time.
    #[error("{}{} did not join within {after:?}", Rank::list(.ranks), and(*.more))]
    Missing {
        /// The missing ranks, or the first of them.
        ranks: Vec<Rank>,
        /// How many further ranks are missing.
        more: u32,
        /// How long the other ranks waited.
        after: Duration,
    },
    /// Ranks that the other ranks wait for have exited with 0.
    #[error("{} exited with 0 and cannot join any more", Rank::list(.ranks))]
    Exited {
        /// The ranks that have exited, or the first of them.
        ranks: Vec<Rank>,
    },
    /// The server had too few descriptors for the connections of all ranks.
    #[error(
        "the server has no descriptors left for more ranks, its limit is {limit}; raise it by `ulimit -n`"
    )]
    Starved {
        /// How many descriptors the server's process may have.
        limit: u32,
    },
    /// Two ranks were given different world sizes.
    #[error("rank {rank} was told that the world has {size} ranks, but rank {peer} was told {theirs}")]
    WorldSize {
        /// The rank that arrived first.
        rank: Rank,
        /// The world size that the first rank claims.
        size: u32,
        /// The rank that was given another size.
        peer: Rank,
        /// The world size that the other rank claims.
        theirs: u32,
    },
    /// Another process has this rank already.
    #[error("another process is rank {rank} already; every process needs a rank of its own")]
    DuplicateRank {
        /// The rank that both processes have.
        rank: Rank,
    },
    /// The server speaks another version of the protocol.
    #[error(
        "this side speaks version {ours} of the protocol and the other {theirs}: run one build everywhere"
    )]
    Version {
        /// This side's version.
        ours: u32,
        /// The other side's version.
        theirs: u32,
    },
    /// The server has another security mode.
    #[error(
        "this side's security mode is {ours} and the other's {theirs}: give every process the same ALLFOLD_SECURITY and \
         secret"
    )]
    Mode {
        /// This side's mode.
        ours: &'static str,
        /// The other side's mode.
        theirs: &'static str,
    },
    /// Two ranks were given different configurations.
    #[error("rank {peer} was given another configuration than rank {rank}: give all ranks the same command")]
    Configuration {
        /// The rank that arrived first.
        rank: Rank,
        /// The rank that differs.
        peer: Rank,
    },
    /// The caller belongs to an earlier start of the world.
    #[error(
        "this process belongs to start {mine} of the world, which is at start {theirs} by now: rank {by} joined that start first"
    )]
    Epoch {
        /// The caller's epoch.
        mine: u32,
        /// The world's epoch.
        theirs: u32,
        /// The first rank that called with the world's epoch.
        by: Rank,
    },
    /// The caller's epoch is far beyond the world's: no launcher has started a world that often.
    #[error(
        "this process belongs to start {mine} of the world, and the world is at start {theirs}: no launcher restarts so often"
    )]
    EpochBeyond {
        /// The caller's epoch.
        mine: u32,
        /// The world's epoch.
        theirs: u32,
    },
    /// The caller belongs to another job.
    #[error("another job uses this port for its rendezvous: give each job a port of its own")]
    Job,
    /// The two sides do not hold the same secret.
    #[error("the other side does not hold the job's secret: give every process the same secret file")]
    Secret,
    /// No server answers at the address.
    #[error("{server} did not answer there within {after:?} ({cause}): start it, and open the port")]
    Unreachable {
        /// The process that serves the rendezvous: rank 0, or the launcher of node 0.
        server: &'static str,
        /// How long the rank tried.
        after: Duration,
        /// The error of the last try.
        cause: String,
    },
    /// Another program listens at the server's port.
    #[error("the port is in use by another program: choose another by MASTER_PORT or --rdzv")]
    PortInUse,
    /// The host of the rendezvous has no address.
    #[error(
        "no host is called {host} ({why}): give the name or the address of the host that serves the rendezvous"
    )]
    UnknownHost {
        /// The name that was given.
        host: String,
        /// The system's error.
        why: String,
    },
    /// The program that answers is no rendezvous of Allfold's.
    #[error("the program that answers there is not an Allfold rendezvous: {0}")]
    NotOurs(String),
    /// The connection to the server ended before all ranks had arrived.
    #[error("the connection to the server ended before all ranks had joined: {0}")]
    Lost(String),
    /// The server waits for missing ranks longer than this rank does.
    #[error(
        "not all ranks joined within {after:?}, and the server waits longer: give every process the same ALLFOLD_RENDEZVOUS_TIMEOUT; \
         the error of the process that serves the rendezvous names the missing ranks"
    )]
    Impatient {
        /// How long this rank waited.
        after: Duration,
    },
    /// The operating system refused a resource.
    #[error("{0}")]
    System(String),
}

impl RendezvousFailure {
    /// The failure of a rendezvous at which an incompatible peer answers.
    pub(super) fn unlike(incompatible_peer: IncompatiblePeer) -> RendezvousFailure {
        match incompatible_peer {
            IncompatiblePeer::Program => RendezvousFailure::NotOurs(incompatible_peer.to_string()),
            IncompatiblePeer::Version { ours, theirs } => {
                RendezvousFailure::Version { ours: ours.into(), theirs: theirs.into() }
            }
            IncompatiblePeer::Mode { ours, theirs } => RendezvousFailure::Mode { ours, theirs },
        }
    }

    /// Whether the cause is a wrong setting, so that trying again does not help.
    pub fn is_lasting(&self) -> bool {
        use RendezvousFailure::{Configuration, EpochBeyond, Mode, Secret, UnknownHost, Version, WorldSize};
        matches!(
            self,
            Configuration { .. }
                | EpochBeyond { .. }
                | Mode { .. }
                | Secret
                | UnknownHost { .. }
                | Version { .. }
                | WorldSize { .. }
        )
    }
}

/// The end of a list of ranks that leaves some out.
pub(super) fn and(more: u32) -> String {
    if more == 0 { String::new() } else { format!(" and {more} more") }
}

/// The encoding of a failure: a code and its numbers. Earlier versions used code 1.
impl RendezvousFailure {
    pub(super) fn parts(&self) -> (u32, Vec<u32>) {
        let millis = |after: &Duration| u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
        match self {
            RendezvousFailure::Missing { ranks, more, after } => {
                let ranks = ranks.iter().take(MISSING).map(|rank| rank.0);
                (11, [millis(after), *more].into_iter().chain(ranks).collect())
            }
            RendezvousFailure::WorldSize { rank, size, peer, theirs } => {
                (2, vec![rank.0, *size, peer.0, *theirs])
            }
            RendezvousFailure::DuplicateRank { rank } => (3, vec![rank.0]),
            RendezvousFailure::Version { ours, theirs } => (4, vec![*theirs, *ours]),
            RendezvousFailure::Configuration { rank, peer } => (5, vec![rank.0, peer.0]),
            RendezvousFailure::Epoch { mine, theirs, by } => (6, vec![*mine, *theirs, by.0]),
            RendezvousFailure::EpochBeyond { mine, theirs } => (10, vec![*mine, *theirs]),
            RendezvousFailure::Job => (7, vec![]),
            RendezvousFailure::Starved { limit } => (9, vec![*limit]),
            RendezvousFailure::Exited { ranks } => (12, ranks.iter().map(|rank| rank.0).collect()),
            _ => (8, vec![]),
        }
    }

    pub(super) fn of(code: u32, numbers: &[u32]) -> RendezvousFailure {
        match (code, numbers) {
            (11, [after, more, ranks @ ..]) => RendezvousFailure::Missing {
                ranks: ranks.iter().copied().map(Rank).collect(),
                more: *more,
                after: Duration::from_millis(u64::from(*after)),
            },
            (2, &[rank, size, peer, theirs]) => {
                RendezvousFailure::WorldSize { rank: Rank(rank), size, peer: Rank(peer), theirs }
            }
            (3, &[rank]) => RendezvousFailure::DuplicateRank { rank: Rank(rank) },
            (4, &[ours, theirs]) => RendezvousFailure::Version { ours, theirs },
            (5, &[rank, peer]) => RendezvousFailure::Configuration { rank: Rank(rank), peer: Rank(peer) },
            (6, &[mine, theirs, by]) => RendezvousFailure::Epoch { mine, theirs, by: Rank(by) },
            (10, &[mine, theirs]) => RendezvousFailure::EpochBeyond { mine, theirs },
            (7, []) => RendezvousFailure::Job,
            (9, &[limit]) => RendezvousFailure::Starved { limit },
            (12, ranks) => RendezvousFailure::Exited { ranks: ranks.iter().copied().map(Rank).collect() },
            _ => RendezvousFailure::Lost("it gave no reason that this version knows".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_survives_its_travel() {
        for failure in [
            RendezvousFailure::Missing {
                ranks: vec![Rank(2), Rank(5)],
                more: 7,
                after: Duration::from_millis(1500),
            },
            RendezvousFailure::WorldSize { rank: Rank(0), size: 4, peer: Rank(3), theirs: 5 },
            RendezvousFailure::DuplicateRank { rank: Rank(7) },
            RendezvousFailure::Configuration { rank: Rank(0), peer: Rank(1) },
            RendezvousFailure::Epoch { mine: 1, theirs: 2, by: Rank(3) },
            RendezvousFailure::EpochBeyond { mine: u32::MAX, theirs: 2 },
            RendezvousFailure::Job,
            RendezvousFailure::Starved { limit: 1024 },
            RendezvousFailure::Exited { ranks: vec![Rank(1), Rank(4)] },
        ] {
            let (code, numbers) = failure.parts();
            assert_eq!(RendezvousFailure::of(code, &numbers), failure);
            assert!(!failure.to_string().contains('\n'));
        }
        // Each of the two sides names its own version first.
        let (code, numbers) = RendezvousFailure::Version { ours: 2, theirs: 1 }.parts();
        assert_eq!(RendezvousFailure::of(code, &numbers), RendezvousFailure::Version { ours: 1, theirs: 2 });
    }
}
