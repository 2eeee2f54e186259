//! One link on the path of a flow.

use crate::LinkId;

/// A link that a flow occupies, and how many flows like this one occupy it at the same time: 1, except where one
/// flow stands for a whole class of flows that a symmetry maps to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The link, or the class of links.
    pub link: LinkId,
    /// Flows like this one on one link of the class.
    pub weight: u32,
}
