//! One start of the world, and the facts of one of its ranks.

/// The facts that the ranks of one start have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// How many times the world was started before; in an elastic job, how many times ranks of this node were started again.
    pub epoch: u32,
    /// The world size.
    pub world: u32,
    /// The first rank of this node.
    pub first: u32,
    /// The port for `MASTER_PORT`, the rendezvous of other libraries (PyTorch).
    pub port: u16,
}

impl Start {
    /// The rank of this node with the number `local` here.
    pub fn rank(self, local: u32) -> StartedRank {
        StartedRank { local, rank: self.first + local }
    }

    /// The number on this node of a rank of the world. `None` for a rank of an earlier node; for a rank of a later node a number
    /// beyond this node's ranks.
    pub fn local(self, rank: u32) -> Option<u32> {
        rank.checked_sub(self.first)
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
