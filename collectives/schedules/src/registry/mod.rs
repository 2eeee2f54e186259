//! Every algorithm of every collective, in one table that tests, benchmarks and the command line all read.

mod table;

pub use table::ALGORITHMS;

use crate::Collective;
use crate::schedule::{Rank, Schedule};
use allfold_base::suggest::unknown;
use std::fmt;
use std::sync::Arc;

/// What a schedule is asked for: how many ranks, which of them is the root, how many to a group. Always valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    ranks: u32,
    root: Rank,
    group: u32,
}

impl Shape {
    /// A shape of `ranks` ranks with root 0, in groups of the largest divisor of `ranks` up to 8.
    ///
    /// # Errors
    /// No ranks at all.
    pub fn new(ranks: u32) -> Result<Shape, Error> {
        let group = (1..=8).rev().find(|size| ranks.is_multiple_of(*size)).unwrap_or(1);
        if ranks == 0 { Err(Error::NoRanks) } else { Ok(Shape { ranks, root: Rank(0), group }) }
    }

    /// The same with another root; ignored by collectives that have none.
    ///
    /// # Errors
    /// The root is no rank of the shape.
    pub fn rooted(self, root: Rank) -> Result<Shape, Error> {
        let inside = root.0 < self.ranks;
        if inside { Ok(Shape { root, ..self }) } else { Err(Error::Root { root, ranks: self.ranks }) }
    }

    /// The same in groups of `group` consecutive ranks; only hierarchical algorithms look at it.
    ///
    /// # Errors
    /// The group size does not divide the number of ranks.
    pub fn grouped(self, group: u32) -> Result<Shape, Error> {
        let divides = group > 0 && self.ranks.is_multiple_of(group);
        if divides { Ok(Shape { group, ..self }) } else { Err(Error::Group { group, ranks: self.ranks }) }
    }

    /// Number of ranks, 1 or more.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The root.
    pub fn root(&self) -> Rank {
        self.root
    }

    /// Ranks per group.
    pub fn group(&self) -> u32 {
        self.group
    }
}

/// What cannot be asked of the table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Zero ranks.
    #[error("no ranks: a collective needs at least 1")]
    NoRanks,
    /// A root outside the group.
    #[error("root {root} is outside the group: it has ranks 0 to {}", ranks - 1)]
    Root {
        /// What was asked for.
        root: Rank,
        /// How many ranks there are.
        ranks: u32,
    },
    /// Groups that do not come out even.
    #[error("groups of {group} do not divide {ranks} ranks")]
    Group {
        /// What was asked for.
        group: u32,
        /// How many ranks there are.
        ranks: u32,
    },
    /// No collective of this name.
    #[error("{}", unknown("collective", .name, &Collective::ALL.map(Collective::name)))]
    Collective {
        /// What was asked for.
        name: String,
    },
    /// No algorithm of this name for this collective.
    #[error("{}", unknown(&format!("algorithm of {collective}"), .name, &names(*.collective).collect::<Vec<_>>()))]
    Algorithm {
        /// For which collective.
        collective: Collective,
        /// What was asked for.
        name: String,
    },
}

fn names(collective: Collective) -> impl Iterator<Item = &'static str> {
    of(collective).map(|row| row.name)
}

/// One row of the table, or a user's own: wherever an algorithm of the table can be used, so can another one.
///
/// ```
/// use allfold_schedules::{Collective, algorithms::RingAllReduce, registry::Algorithm};
/// use std::sync::Arc;
///
/// static MINE: Algorithm = Algorithm::new(Collective::AllReduce, "mine", "a ring, for the sake of example", |shape| {
///     Arc::new(RingAllReduce(shape.ranks()))
/// });
/// ```
pub struct Algorithm {
    /// What it computes.
    pub collective: Collective,
    /// What it is called: `ring`, `halving_doubling`, ...
    pub name: &'static str,
    /// One line for help texts.
    pub about: &'static str,
    /// Whether it is cut into segments that follow each other through it, when nothing else is asked for.
    pub pipelined: bool,
    build: fn(Shape) -> Arc<dyn Schedule>,
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.collective, self.name)
    }
}

impl Algorithm {
    /// An algorithm of one's own, given what builds its schedule for any shape. Not pipelined unless asked for.
    pub const fn new(
        collective: Collective,
        name: &'static str,
        about: &'static str,
        build: fn(Shape) -> Arc<dyn Schedule>,
    ) -> Algorithm {
        Algorithm { collective, name, about, pipelined: false, build }
    }

    /// The schedule for a shape.
    pub fn build(&self, shape: Shape) -> Arc<dyn Schedule> {
        (self.build)(shape)
    }

    /// How many steps a rank has under way at once, when nothing else is asked for.
    pub fn window(&self) -> u32 {
        if self.pipelined { 64 } else { 1 }
    }

    /// Into how many segments a buffer of this many bytes is cut, when nothing else is asked for: pieces of
    /// 128 KiB for a pipeline, one piece otherwise. Results do not depend on it.
    pub fn segments(&self, bytes: u64) -> u32 {
        const PIECE: u64 = 128 << 10;
        if self.pipelined { bytes.div_ceil(PIECE).clamp(1, 4096) as u32 } else { 1 }
    }
}

/// The algorithms of one collective, in the table's order.
pub fn of(collective: Collective) -> impl Iterator<Item = &'static Algorithm> {
    ALGORITHMS.iter().filter(move |row| row.collective == collective)
}

/// The algorithm of this name.
///
/// # Errors
/// There is none: the error lists the names and suggests the nearest.
pub fn find(collective: Collective, name: &str) -> Result<&'static Algorithm, Error> {
    of(collective)
        .find(|row| row.name == name)
        .ok_or_else(|| Error::Algorithm { collective, name: name.into() })
}

/// The collective of this name.
///
/// # Errors
/// There is none: the error lists the names and suggests the nearest.
pub fn collective(name: &str) -> Result<Collective, Error> {
    let found = Collective::ALL.into_iter().find(|known| known.name() == name);
    found.ok_or_else(|| Error::Collective { name: name.into() })
}

/// The algorithm for a buffer of this many bytes when none is asked for. Which one it is depends on the size, the
/// result does not: where the collective reduces, all candidates are canonical.
pub fn auto(collective: Collective, shape: Shape, bytes: u64) -> &'static Algorithm {
    let (ranks, small) = (shape.ranks, bytes <= 32 << 10);
    let (binary, few) = (ranks.is_power_of_two(), ranks <= 64);
    let name = match collective {
        Collective::AllReduce if small => "recursive_doubling",
        Collective::AllReduce | Collective::ReduceScatter if binary || !few => "halving_doubling",
        Collective::AllReduce | Collective::ReduceScatter => "direct",
        Collective::Reduce if small || !few => "binomial",
        Collective::Reduce => "direct",
        Collective::Broadcast if small => "binomial",
        Collective::Broadcast if few => "scatter_all_gather",
        Collective::Broadcast => "double_binary_tree",
        Collective::AllGather if binary => "halving_doubling",
        Collective::AllGather if small || !few => "bruck",
        Collective::AllGather => "ring",
        Collective::Gather | Collective::Scatter if small => "binomial",
        Collective::Gather | Collective::Scatter => "star",
        Collective::AllToAll if small => "bruck",
        Collective::AllToAll => "pairwise",
        Collective::Barrier => "dissemination",
        Collective::SendRecv => "shift",
    };
    #[allow(clippy::expect_used, reason = "a test asks for every one of these names")]
    find(collective, name).expect("a default algorithm is in the table")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn automatic_choice_is_in_the_table_for_every_size() {
        for ranks in [1, 2, 3, 8, 63, 64, 65, 100_000, 131_072] {
            let shape = Shape::new(ranks).unwrap();
            for collective in Collective::ALL {
                for bytes in [0, 1 << 10, 1 << 20, 1 << 40] {
                    assert_eq!(auto(collective, shape, bytes).collective, collective);
                }
            }
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let error = find(Collective::AllReduce, "rong").err().unwrap().to_string();
        assert!(error.contains("did you mean `ring`?") && error.contains("double_binary_tree"), "{error}");
        let error = collective("allreduce").err().unwrap().to_string();
        assert!(error.contains("did you mean `all_reduce`?"), "{error}");
        assert_eq!(find(Collective::Barrier, "zzzzzzzzz").err().unwrap().to_string().matches('?').count(), 0);
    }

    #[test]
    fn shapes_that_make_no_sense_are_refused() {
        assert_eq!(Shape::new(0), Err(Error::NoRanks));
        let shape = Shape::new(6).unwrap();
        assert_eq!(shape.group(), 6);
        assert!(shape.rooted(Rank(6)).is_err() && shape.grouped(4).is_err() && shape.grouped(0).is_err());
        assert_eq!(Shape::new(24).unwrap().group(), 8);
        assert_eq!(Shape::new(u32::MAX).map(|shape| shape.group()), Ok(5));
    }
}
