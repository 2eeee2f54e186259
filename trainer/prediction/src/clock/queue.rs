//! The communicators of a rank.

use allfold_trainer::engine::MeshAxis;

/// A communicator, whose operations follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Queue {
    /// All ranks.
    World,
    /// The ranks along an axis.
    Along(MeshAxis),
    /// The stages that hold a copy of a unit.
    Copies(usize),
}
