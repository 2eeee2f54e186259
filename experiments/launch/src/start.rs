//! One start of the world, and a rank of it.

/// The facts that the ranks of one start have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// How many times the world was started before.
    pub epoch: u32,
    /// Ranks of the world.
    pub world: u32,
    /// The first rank of this node.
    pub first: u32,
    /// The port at which programs of other libraries meet.
    pub port: u16,
}

impl Start {
    /// The rank of this node with the number `local` here.
    pub fn rank(self, local: u32) -> StartedRank {
        StartedRank { local, rank: self.first + local }
    }
}

/// A rank of a start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartedRank {
    /// The rank's number on its node.
    pub local: u32,
    /// The rank's number in the world.
    pub rank: u32,
}
