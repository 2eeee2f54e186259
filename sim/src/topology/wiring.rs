//! The shapes that a topology can have.

/// The pattern of links between the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wiring {
    /// Every rank has one port to a non-blocking switch. Families: up, down.
    Switch,
    /// Each rank has a link to its next and its previous neighbour. Families: cw, ccw.
    Ring,
    /// A link for every ordered pair of ranks. Family d (from 1 to n - 1): from r to r + d, modulo n.
    Mesh,
    /// Nodes of `devices` ranks behind a switch of their own, with `nics` NICs per node (each shared by `devices / nics`
    /// consecutive devices) to a switch between the nodes. Families: up, down, nic_out, nic_in.
    Nodes {
        /// Ranks per node.
        devices: u32,
        /// NICs per node; the number divides `devices`.
        nics: u32,
    },
    /// Nodes of `devices` ranks with paths from a node's table, in pods of `pod` ranks (0: no spine is modelled).
    Cluster {
        /// Ranks per node.
        devices: u32,
        /// Ranks per pod, a multiple of `devices`; 0 if there are no pods.
        pod: u32,
    },
    /// An explicit graph, with a family for each directed link, called `FROM>TO`.
    Graph,
}
