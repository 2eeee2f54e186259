//! Errors of the table of algorithms.

use crate::Collective;
use crate::schedule::Rank;
use allfold_base::suggest::unknown;

/// A request that the table of algorithms cannot serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Zero ranks.
    #[error("no ranks: a collective needs at least 1")]
    NoRanks,
    /// A root outside the group.
    #[error("root {root} is outside the group: it has ranks 0 to {}", ranks - 1)]
    Root {
        /// The root that the caller asked for.
        root: Rank,
        /// How many ranks there are.
        ranks: u32,
    },
    /// A group size that does not divide the number of ranks.
    #[error("groups of {group} do not divide {ranks} ranks")]
    Group {
        /// The group size that the caller asked for.
        group: u32,
        /// How many ranks there are.
        ranks: u32,
    },
    /// No collective of this name.
    #[error("{}", unknown("collective", .name, &Collective::ALL.map(Collective::name)))]
    Collective {
        /// The name that the caller asked for.
        name: String,
    },
    /// No algorithm of this name for this collective.
    #[error("{}", unknown(&format!("algorithm of {collective}"), .name, .known))]
    Algorithm {
        /// For which collective.
        collective: Collective,
        /// The name that the caller asked for.
        name: String,
        /// What its algorithms are called.
        known: Vec<&'static str>,
    },
    /// An algorithm to be added has the name of another one.
    #[error("{collective} has an algorithm `{name}` already; give your own another name")]
    Taken {
        /// For which collective.
        collective: Collective,
        /// The name.
        name: &'static str,
    },
    /// Algorithms were added before.
    #[error("a program adds its algorithms once; pass all of them to that call")]
    Added,
}
