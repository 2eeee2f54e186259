//! Reduction in the network's switches (CollNet, SHARP): every node's sum is sent up once, and the switches hold the result. In reverse,
//! the schedule is the multicast.
//!
//! ```text
//! 2 nodes of 3 GPUs and the network's switch, rank 6
//!
//! chain    0 -> 1 -> 2 --.      a chain inside each node to the GPU with the NIC      S bytes out of a node, S in
//!          3 -> 4 -> 5 ---- 6
//!
//! direct   0 1 2 exchange, then each sends the third that it has reduced             S / 3 over each GPU's NIC
//! ```
//!
//! The network's switches are one rank, which contributes the neutral element. Cost of an all-reduce: S out of and S into every
//! node, for any number of nodes; two hops. Order uniform.
//! Source: Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)", COMHPC 2016; NCCL `src/graph/connect.cc`.

use allfold_schedules::schedule::{Combine, Rank, Schedule, Span, Step};

/// A reduction from `nodes` nodes of `devices` GPUs to the network, which is the last rank.
#[derive(Clone, Copy, Debug)]
pub struct InNetwork {
    /// The number of nodes.
    pub nodes: u32,
    /// The number of GPUs per node.
    pub devices: u32,
    /// Whether the GPUs of a node exchange their data and each sends a share through a NIC of its own; otherwise the GPUs form a
    /// chain to the one that has a NIC.
    pub direct: bool,
}

impl InNetwork {
    fn network(self) -> Rank {
        Rank(self.nodes * self.devices)
    }

    /// The number of rounds within nodes, before the first message leaves a node.
    fn inside(self) -> u64 {
        u64::from(self.devices - 1)
    }

    /// The number of messages that the network receives: one from every node for each chunk.
    fn heads(self) -> u64 {
        u64::from(self.nodes) * u64::from(self.chunks())
    }

    /// The step of `rank`, the GPU number `device` of its node, in `round` of the rounds within nodes: of the exchange if `direct`
    /// is set, otherwise of the chain.
    fn exchange(self, rank: u32, device: u32, round: u32) -> Step {
        let first = rank - device;
        if !self.direct {
            let send = (device == round).then(|| (Rank(rank + 1), Span::data(0, 1)));
            let recv = (device == round + 1).then(|| (Rank(rank - 1), Span::data(0, 1), Combine::Reduce));
            return Step { send, recv };
        }
        let (to, from) =
            ((device + round + 1) % self.devices, (device + self.devices - round - 1) % self.devices);
        Step {
            send: Some((Rank(first + to), Span::data(to, 1))),
            recv: Some((Rank(first + from), Span::data(device, 1), Combine::Reduce)),
        }
    }
}

impl Schedule for InNetwork {
    fn ranks(&self) -> u32 {
        self.nodes * self.devices + 1
    }
    fn chunks(&self) -> u32 {
        if self.direct { self.devices } else { 1 }
    }
    fn rounds(&self) -> u64 {
        self.inside() + 2 * self.heads()
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let network = self.network();
        let Some(head) = round.checked_sub(self.inside()) else {
            let device = rank.0 % self.devices;
            return if rank == network { Step::IDLE } else { self.exchange(rank.0, device, round as u32) };
        };
        let at = (head % self.heads()) as u32;
        let (node, chunk) = (at / self.chunks(), at % self.chunks());
        let sender = Rank(node * self.devices + if self.direct { chunk } else { self.devices - 1 });
        let (data, place) = (Span::data(chunk, 1), Span::scratch(node, chunk, 1));
        match (rank == network, head < self.heads()) {
            (false, true) if rank == sender => Step { send: Some((network, data)), recv: None },
            (true, true) => Step { send: None, recv: Some((sender, place, Combine::Copy)) },
            (true, false) => Step::local(network, place, data, Combine::Reduce),
            _ => Step::IDLE,
        }
    }
    fn stride(&self) -> u64 {
        1
    }
    fn owner(&self, _chunk: u32) -> Rank {
        self.network()
    }
}
