//! Errors of the algorithm table.

use crate::Collective;
use crate::schedule::Rank;
use allfold_base::suggest::unknown;

/// A request that the algorithm table cannot serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A shape with zero ranks.
    #[error("the number of ranks is 0; a collective needs at least 1")]
    NoRanks,
    /// A root that is outside the group.
    #[error("root {root} is outside the group: it has ranks 0 to {}", ranks - 1)]
    Root {
        /// The requested root.
        root: Rank,
        /// The number of ranks.
        ranks: u32,
    },
    /// A group size that does not divide the number of ranks.
    #[error("groups of {group} do not divide {ranks} ranks")]
    Group {
        /// The requested group size.
        group: u32,
        /// The number of ranks.
        ranks: u32,
    },
    /// There is no collective with this name.
    #[error("{}", unknown("collective", .name, &Collective::ALL.map(Collective::name)))]
    Collective {
        /// The requested name.
        name: String,
    },
    /// The collective has no algorithm with this name.
    #[error("{}", unknown(&format!("algorithm of {collective}"), .name, .known))]
    Algorithm {
        /// The collective whose algorithm was requested.
        collective: Collective,
        /// The requested name.
        name: String,
        /// The names of the collective's algorithms.
        known: Vec<&'static str>,
    },
    /// The algorithm does not take this number of ranks.
    #[error("{collective} by {name} is for {which}, and there are {ranks}")]
    Ranks {
        /// The algorithm's collective.
        collective: Collective,
        /// The algorithm's name.
        name: &'static str,
        /// Which numbers of ranks the algorithm takes.
        which: &'static str,
        /// The requested number of ranks.
        ranks: u32,
    },
    /// The algorithm's function made a schedule for another number of ranks.
    #[error(
        "{collective} by {name} made a schedule for a group of {made}, not of {ranks}: it must be for all ranks of the shape that it is given"
    )]
    Made {
        /// The algorithm's collective.
        collective: Collective,
        /// The algorithm's name.
        name: &'static str,
        /// The number of ranks of the schedule.
        made: u32,
        /// The requested number of ranks.
        ranks: u32,
    },
    /// The algorithm's schedule is wrong, so that its ranks would wait for each other or end with a wrong result.
    #[error("{collective} by {name} is wrong over {ranks} ranks: {flaw}")]
    Wrong {
        /// The algorithm's collective.
        collective: Collective,
        /// The algorithm's name.
        name: &'static str,
        /// The number of ranks.
        ranks: u32,
        /// The counterexample.
        flaw: String,
    },
    /// An added algorithm has the name of an existing one.
    #[error("{collective} has an algorithm `{name}` already; give your own another name")]
    Taken {
        /// The collective of both algorithms.
        collective: Collective,
        /// The name that is taken.
        name: &'static str,
    },
}
