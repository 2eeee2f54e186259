//! A link on the path of a flow, with the number of flows that share it.

use crate::LinkId;

/// A link that a flow occupies, and how many equal flows occupy it at the same time: 1, except where one flow represents a whole
/// class of flows that a symmetry maps to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The link, or the representative of a class of links.
    pub link: LinkId,
    /// The number of flows of this flow's class on one link of the class.
    pub weight: u32,
}
