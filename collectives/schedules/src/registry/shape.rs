//! The shape of a call: ranks, root, group size.

use super::error::Error;
use crate::schedule::Rank;

/// The parameters of a schedule: the number of ranks, the root, and the ranks per group. Every value of this type is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub(super) ranks: u32,
    pub(super) root: Rank,
    pub(super) group: u32,
}

impl Shape {
    /// A shape of `ranks` ranks with root 0, in groups of the largest divisor of `ranks` up to 8.
    ///
    /// # Errors
    /// `ranks` is 0.
    pub fn new(ranks: u32) -> Result<Shape, Error> {
        let group = (1..=8).rev().find(|size| ranks.is_multiple_of(*size)).unwrap_or(1);
        if ranks == 0 { Err(Error::NoRanks) } else { Ok(Shape { ranks, root: Rank(0), group }) }
    }

    /// This shape with another root, which collectives without a root ignore.
    ///
    /// # Errors
    /// The root is not a rank of the shape.
    pub fn rooted(self, root: Rank) -> Result<Shape, Error> {
        let inside = root.0 < self.ranks;
        if inside { Ok(Shape { root, ..self }) } else { Err(Error::Root { root, ranks: self.ranks }) }
    }

    /// This shape with groups of `group` consecutive ranks, which only hierarchical algorithms use.
    ///
    /// # Errors
    /// The group size does not divide the number of ranks.
    pub fn grouped(self, group: u32) -> Result<Shape, Error> {
        let divides = group > 0 && self.ranks.is_multiple_of(group);
        if divides { Ok(Shape { group, ..self }) } else { Err(Error::Group { group, ranks: self.ranks }) }
    }

    /// The number of ranks, 1 or more.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The root.
    pub fn root(&self) -> Rank {
        self.root
    }

    /// The number of ranks per group.
    pub fn group(&self) -> u32 {
        self.group
    }
}
