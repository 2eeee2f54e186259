//! The schedules of NCCL's algorithms over nodes of GPUs.
//!
//! ```text
//! Ring       all GPUs of a node in a chain, then the next node; one NIC in and one out for each channel
//! Tree       a chain inside every node to the GPU with the NIC, a double binary tree across
//! NVLS       the switch of a node reduces and multicasts; NVLSTree: a double binary tree across the switches
//! PAT        a binomial tree for every chunk, one rank per node
//! CollNet    the network's switches reduce and multicast; inside nodes a chain, or all to all
//! ```
//!
//! All channels of a call are equal, except that each starts at another GPU and uses another NIC. One schedule therefore represents all
//! channels, on links with the bandwidth of all channels; [`ChannelLayout::extra`] lists the ranks that are switches.

mod in_network;
mod in_switch;
mod pat;
mod staggered;
mod tree;

pub use in_network::InNetwork;
pub use in_switch::InSwitch;
pub use pat::Pat;
pub use staggered::Staggered;
pub use tree::NodeTree;

use super::NcclAlgorithm;
use allfold_schedules::Collective;
use allfold_schedules::algorithms::{Chain, RingAllReduce, RingReduceScatter};
use allfold_schedules::schedule::{Lanes, Over, Rank, Reverse, Schedule, Segments, then_reverse};
use std::sync::Arc;

/// The schedule of a call over nodes, with the number of steps in flight and the ranks that are switches.
#[derive(Clone)]
pub struct ChannelLayout {
    /// The schedule, which represents all channels.
    pub schedule: Arc<dyn Schedule>,
    /// The number of steps of a rank that may be in flight at once: buffers, or messages that a switch receives together.
    pub window: u32,
    /// The ranks of the schedule that are switches.
    pub extra: Extra,
}

/// The ranks of a schedule that are switches, not GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// All ranks are GPUs.
    Nothing,
    /// The last rank of every node is its NVLink switch.
    NodeSwitches,
    /// The last rank is the network.
    Network,
}

/// The layout of a call on `nodes` nodes of `devices` GPUs, cut into `pieces` for pipelining. `None` if the algorithm does not
/// support the collective, and for all-gather and reduce-scatter through switches (NVLS, CollNet), which have no layout.
pub fn layout(
    collective: Collective,
    algorithm: NcclAlgorithm,
    nodes: u32,
    devices: u32,
    pieces: u32,
) -> Option<ChannelLayout> {
    let ranks = nodes * devices;
    let root = Rank(0);
    let ring =
        |schedule: Arc<dyn Schedule>| ChannelLayout { schedule, window: 2 * BUFFERS, extra: Extra::Nothing };
    let last = Rank(ranks - 1);
    Some(match (algorithm, collective) {
        (NcclAlgorithm::Ring, Collective::AllReduce) => ring(cut(Staggered(RingAllReduce(ranks)), pieces)),
        (NcclAlgorithm::Ring, Collective::ReduceScatter) => {
            ring(cut(Staggered(RingReduceScatter(ranks)), pieces))
        }
        (NcclAlgorithm::Ring, Collective::AllGather) => {
            ring(cut(Staggered(Reverse(RingReduceScatter(ranks))), pieces))
        }
        (NcclAlgorithm::Ring, Collective::Reduce) => ring(cut(Chain { ranks, root: last }, pieces)),
        (NcclAlgorithm::Ring, Collective::Broadcast) => {
            ring(cut(Reverse(Chain { ranks, root: last }), pieces))
        }
        (NcclAlgorithm::Pat, Collective::ReduceScatter) => ring(cut(Pat(ranks), 1)),
        (NcclAlgorithm::Pat, Collective::AllGather) => ring(cut(Reverse(Pat(ranks)), 1)),
        (NcclAlgorithm::Tree, Collective::AllReduce) => {
            let chain = Chain { ranks: devices, root: Rank(devices - 1) };
            let (schedule, under_way) = match nodes {
                1 => pipeline(then_reverse(chain), pieces),
                _ => pipeline(twins(nodes, |tree| then_reverse(Over::new(chain, tree))), pieces),
            };
            // The steps of a rank per piece: in each of the two trees at most two of the chain and five of the tree, and as many on
            // the way back.
            ChannelLayout { schedule, window: 28 * under_way, extra: Extra::Nothing }
        }
        (NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree, Collective::AllReduce) => {
            let switch = InSwitch { gpus: devices };
            let (schedule, under_way) = match nodes {
                1 => pipeline(then_reverse(switch), pieces),
                _ => pipeline(twins(nodes, |tree| then_reverse(Over::new(switch, tree))), pieces),
            };
            // A switch receives and sends all its GPUs' data at the same time, with one message and one step for each GPU.
            ChannelLayout { schedule, window: (8 * devices + 20) * under_way, extra: Extra::NodeSwitches }
        }
        (NcclAlgorithm::CollNetDirect | NcclAlgorithm::CollNetChain, Collective::AllReduce) => {
            let network = InNetwork { nodes, devices, direct: algorithm == NcclAlgorithm::CollNetDirect };
            let (schedule, under_way) = pipeline(then_reverse(network), pieces);
            // The network receives and sends all nodes' data at the same time.
            let each = 4 * (nodes * network.chunks() + devices);
            ChannelLayout { schedule, window: each.saturating_mul(under_way), extra: Extra::Network }
        }
        _ => return None,
    })
    .filter(|_| root.0 < ranks)
}

/// NCCL's number of buffers per connection (`NCCL_STEPS`): at most this many messages to a rank are in flight. A rank's program has
/// a step for each incoming and each outgoing message, so twice as many of its steps are in flight.
const BUFFERS: u32 = 8;

/// The schedule cut into pieces for pipelining, and the number of pieces that are in flight when the pipeline is full.
fn pipeline(schedule: impl Schedule + 'static, pieces: u32) -> (Arc<dyn Schedule>, u32) {
    let depth = schedule.rounds().div_ceil(schedule.stride().max(1));
    let under_way = u32::try_from(depth).unwrap_or(u32::MAX).clamp(1, pieces.max(1));
    (cut(schedule, pieces), under_way)
}

fn cut(schedule: impl Schedule + 'static, pieces: u32) -> Arc<dyn Schedule> {
    match pieces {
        0 | 1 => Arc::new(schedule),
        _ => Arc::new(Segments::new(schedule, pieces)),
    }
}

/// A tree and its twin, each for one half of the data.
fn twins<S: Schedule>(nodes: u32, how: impl Fn(NodeTree) -> S) -> Lanes<S> {
    let trees: Vec<S> = [false, true].into_iter().map(|twin| how(NodeTree { nodes, twin })).collect();
    let stride = trees.iter().map(S::stride).max().unwrap_or(0);
    let both = Lanes::new(trees).at_stride(stride);
    // Nodes are counted from the end in the twin of an even number of nodes.
    if nodes.is_multiple_of(2) {
        let ranks = both.ranks();
        return both.mirrored(ranks / nodes);
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_schedules::check;

    fn proved(collective: Collective, algorithm: NcclAlgorithm, nodes: u32, devices: u32, pieces: u32) {
        let found = layout(collective, algorithm, nodes, devices, pieces).unwrap();
        let root = match collective {
            Collective::Broadcast | Collective::Reduce => Rank(nodes * devices - 1),
            _ => Rank(0),
        };
        let proof = check::check(&*found.schedule, collective, root);
        assert!(proof.is_ok(), "{algorithm} {collective} {nodes} x {devices} in {pieces}: {:?}", proof.err());
        assert_eq!(check::claims(&*found.schedule), Ok(()), "{algorithm} {collective} {nodes} x {devices}");
    }

    #[test]
    fn every_layout_is_proved_over_nodes_and_devices() {
        use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
        for nodes in 1..=6 {
            for devices in 1..=5 {
                for pieces in [1, 3] {
                    if nodes * devices == 1 {
                        continue;
                    }
                    for collective in [AllReduce, AllGather, ReduceScatter, Broadcast, Reduce] {
                        proved(collective, NcclAlgorithm::Ring, nodes, devices, pieces);
                    }
                    proved(AllReduce, NcclAlgorithm::Tree, nodes, devices, pieces);
                    proved(AllReduce, NcclAlgorithm::Nvls, nodes, devices, pieces);
                    proved(AllReduce, NcclAlgorithm::CollNetDirect, nodes, devices, pieces);
                    proved(AllReduce, NcclAlgorithm::CollNetChain, nodes, devices, pieces);
                    if devices == 1 {
                        proved(AllGather, NcclAlgorithm::Pat, nodes, 1, pieces);
                        proved(ReduceScatter, NcclAlgorithm::Pat, nodes, 1, pieces);
                    }
                }
            }
        }
        for ranks in 7..=33 {
            proved(AllGather, NcclAlgorithm::Pat, ranks, 1, 1);
            proved(AllReduce, NcclAlgorithm::Tree, ranks, 1, 1);
        }
    }

    #[test]
    fn a_tree_and_its_twin_share_the_work() {
        // Every node is a leaf in at least one of the two trees; NCCL's trees.cc states this for even numbers of nodes.
        for nodes in [2u32, 4, 8, 16] {
            let inner = |twin, node| {
                let tree = NodeTree { nodes, twin };
                (0..tree.rounds()).any(|round| tree.step(Rank(node), round).recv.is_some())
            };
            let both = (0..nodes).filter(|&node| inner(false, node) && inner(true, node)).count();
            assert_eq!(both, 0, "{nodes} nodes");
        }
    }

    #[test]
    fn unsupported_collectives_have_no_layout() {
        assert!(layout(Collective::AllGather, NcclAlgorithm::CollNetDirect, 2, 8, 1).is_none());
        assert!(layout(Collective::AllGather, NcclAlgorithm::Tree, 2, 8, 1).is_none());
    }
}
