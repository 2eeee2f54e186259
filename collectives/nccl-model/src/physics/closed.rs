//! The time of a call in closed form: an approximation of the simulated schedule by its longest chain and its slowest link.
//! Calibration fits this form, which takes a hundred nanoseconds to compute.
//!
//! ```text
//! time = hypot(host, base + steps inside + hops across + bytes / bandwidth)          hypot(a, b) = sqrt(a^2 + b^2)
//! bandwidth = min(inside, across)          host: a time per GPU that one process launches on, and per channel
//! ```

use super::super::{NcclAlgorithm, Protocol};
use super::case::opening;
use super::matching::matching;
use super::parameters::{
    BASE, EXTRA, FILL, FIRST, HOP, HOP_LL128, HOP_SIMPLE, LAUNCH, LAUNCH_CHANNEL, LINK_BRIDGES, LINK_COPIED,
    LINK_PAIRS, LINK_PCIE, NVLS, NVLS_STEP, P2P, P2P_COPY, P2P_PEER, Parameters, RING_BYTES, RING_END, SHARE,
    SHARE_COPIED, SOCKET, STEP, STEP_NVLINK5, TREE, link,
};
use super::{ModelTerm, PhysicsCase, Terms};
use allfold_schedules::Collective;
use allfold_sim::machines::{Fabric, Generation, USUAL_CLOCK};

/// The message sizes in bytes from which some NICs, and from which all NICs, use a rendezvous: 8 KiB is the usual limit of libfabric and
/// MPI, and half and twice this size are common.
const EAGER: (f64, f64) = (4096.0, 16384.0);

/// The time of a call in microseconds, in closed form.
pub fn closed(case: &PhysicsCase, parameters: &Parameters, terms: Terms) -> f64 {
    let rates = Rates::of(case, parameters, terms);
    let mut time = latency(case, parameters, terms) + case.bytes / 1e3 / rates.all();
    time += fill(case, parameters, terms, &rates);
    outside(case, parameters, terms, time.max(matching(case, parameters, terms)))
}

/// The time of a call with the time outside the device added: launching on one GPU after another, and the warm-up of the first
/// call.
pub(super) fn outside(case: &PhysicsCase, parameters: &Parameters, terms: Terms, device: f64) -> f64 {
    let mut time = device;
    if terms.has(ModelTerm::HostLaunch) && case.machine.driven > 1.0 {
        let each = parameters.at(LAUNCH) + parameters.at(LAUNCH_CHANNEL) * case.used;
        time = device.hypot(each * case.machine.driven);
    }
    if terms.has(ModelTerm::FirstCall) && case.first {
        time *= parameters.at(FIRST);
    }
    time
}

/// The numbers of steps within nodes and across nodes on the longest chain.
pub(super) fn chain(case: &PhysicsCase) -> (f64, f64) {
    let &PhysicsCase { ranks, nodes, devices, collective, .. } = case;
    let doublings = nodes.log2().ceil();
    if collective == Collective::AllToAll {
        return (1.0, if nodes > 1.0 { 1.0 } else { 0.0 });
    }
    match case.algorithm {
        NcclAlgorithm::Ring => {
            let steps = match collective {
                Collective::AllReduce => 2.0 * (ranks - 1.0),
                _ => ranks - 1.0,
            };
            let across = match nodes {
                1.0 => 0.0,
                _ if devices == 1.0 => steps,
                _ => (steps * nodes / ranks).ceil(),
            };
            (steps - across, across)
        }
        NcclAlgorithm::Tree => (2.0 * (devices - 1.0), 2.0 * doublings),
        NcclAlgorithm::Nvls => (1.0, if nodes > 1.0 { 1.0 } else { 0.0 }),
        NcclAlgorithm::NvlsTree => (1.0, 2.0 * doublings),
        NcclAlgorithm::Pat => (0.0, doublings),
        NcclAlgorithm::CollNetDirect => (2.0, 2.0),
        NcclAlgorithm::CollNetChain => (2.0 * (devices - 1.0), 2.0),
    }
}

/// The time of a hop from node to node, in microseconds.
pub(super) fn hop(case: &PhysicsCase, parameters: &Parameters, terms: Terms) -> f64 {
    let fabric = terms.has(ModelTerm::NicFamily).then_some(case.machine.fabric);
    let protocol = match case.protocol {
        Protocol::Ll => 1.0,
        Protocol::Ll128 => parameters.at(HOP_LL128),
        Protocol::Simple => parameters.at(HOP_SIMPLE),
    };
    let ask = if terms.has(ModelTerm::Rendezvous) {
        rendezvous_share(message(case)) * parameters.family(EXTRA, fabric)
    } else {
        0.0
    };
    parameters.family(HOP, fabric) * protocol + ask
}

/// The share of NICs that use a rendezvous for messages of `bytes`: it grows with the logarithm between the limits of `EAGER`.
fn rendezvous_share(bytes: f64) -> f64 {
    ((bytes / EAGER.0).ln() / (EAGER.1 / EAGER.0).ln()).clamp(0.0, 1.0)
}

/// The bytes on the wire of one message of one channel.
fn message(case: &PhysicsCase) -> f64 {
    let wire = if case.protocol == Protocol::Ll { 2.0 } else { 1.0 };
    match case.algorithm {
        NcclAlgorithm::Ring => wire * case.bytes / case.ranks / case.used,
        _ => wire * case.bytes / case.used,
    }
}

pub(super) fn step(case: &PhysicsCase, parameters: &Parameters) -> f64 {
    match case.algorithm {
        NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree => case.step * parameters.at(NVLS_STEP),
        _ if case.machine.nvlink && case.machine.generation == Generation::Blackwell => {
            case.step * parameters.of_protocol(STEP, case.protocol) * parameters.at(STEP_NVLINK5)
        }
        _ => case.step * parameters.of_protocol(STEP, case.protocol),
    }
}

/// The time before a call's first byte, in microseconds: a kernel's start and its first look at flags take a number of clock cycles.
pub(super) fn base(case: &PhysicsCase, parameters: &Parameters, terms: Terms) -> f64 {
    let base = if case.base > 0.0 { case.base } else { 8.4 };
    let clock = if terms.has(ModelTerm::GpuClock) { case.machine.clock } else { USUAL_CLOCK };
    base * USUAL_CLOCK / clock * parameters.of_protocol(BASE, opening(case.collective, case.protocol))
}

fn latency(case: &PhysicsCase, parameters: &Parameters, terms: Terms) -> f64 {
    let (inside, across) = chain(case);
    let across = if case.nodes > 1.0 { across * hop(case, parameters, terms) } else { 0.0 };
    let peers = if case.collective == Collective::AllToAll { case.ranks - 2.0 } else { 0.0 };
    base(case, parameters, terms) + inside * step(case, parameters) + across + peers * parameters.at(P2P_PEER)
}

/// The bandwidth in GB/s of the call's bytes that each limit allows.
pub(super) struct Rates {
    inside: f64,
    across: f64,
    /// The bandwidth of data through a GPU's port in each direction, in GB/s.
    through: f64,
    /// The bandwidth of data out of a node, in GB/s.
    pub(super) network: f64,
}

impl Rates {
    pub(super) fn of(case: &PhysicsCase, parameters: &Parameters, terms: Terms) -> Rates {
        let &PhysicsCase { ranks, nodes, devices, .. } = case;
        let port = port(case, parameters, terms);
        let network = network(case, parameters, terms);
        // The bytes through a GPU's port (`through`) and out of a node (`out`), per byte of the call.
        let both = if case.collective == Collective::AllReduce { 2.0 } else { 1.0 };
        let ring = both * (ranks - 1.0) / ranks;
        let (through, out) = match case.algorithm {
            // Every byte leaves by the port; of a node's bytes all but those for the node itself by its NICs.
            NcclAlgorithm::Ring if case.collective == Collective::AllToAll => {
                let group = parameters.at(P2P);
                (sent(case, parameters, terms, port), devices * (nodes - 1.0) / nodes / group)
            }
            NcclAlgorithm::Ring => match case.collective {
                Collective::Broadcast | Collective::Reduce => (1.0, 1.0),
                _ => (ring, ring),
            },
            NcclAlgorithm::Tree => (2.0 * (devices - 1.0) / devices, out_of_trees(nodes)),
            NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree if case.collective == Collective::AllReduce => {
                (1.0, out_of_trees(nodes))
            }
            NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree => ((devices - 1.0) / devices, ring),
            NcclAlgorithm::Pat => (ring, ring),
            NcclAlgorithm::CollNetDirect | NcclAlgorithm::CollNetChain => (ring, 1.0),
        };
        let (inside, across) = match (case.protocol, case.algorithm) {
            (Protocol::Ll, NcclAlgorithm::Tree) => (port * 0.92 / 3.8, network / 2.0),
            (Protocol::Ll, _) => (port * 0.5, network / 2.0),
            (Protocol::Ll128, NcclAlgorithm::Tree) => {
                let data = if nodes == 1.0 { 7.0 / 9.0 } else { 15.0 / 16.0 };
                (port.min(case.running * case.machine.tree) * 0.92 * data, network * 15.0 / 16.0)
            }
            (Protocol::Ll128, _) => (port * 0.92, network * 15.0 / 16.0),
            (_, NcclAlgorithm::Tree) => (
                port.min(case.running * case.machine.tree) * parameters.at(TREE),
                network * parameters.at(TREE),
            ),
            (_, NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree) => {
                (port * parameters.at(NVLS), network * parameters.at(TREE))
            }
            _ => (port, network),
        };
        let links = (inside, across);
        let inside = if devices > 1.0 { inside / through } else { f64::INFINITY };
        let across = if nodes > 1.0 { across / out } else { f64::INFINITY };
        Rates { inside, across, through: links.0, network: links.1 }
    }

    /// The bandwidth of data through a GPU's port, in GB/s, in a schedule that represents all channels. In trees, each channel's
    /// chain begins at another GPU: the middle of one chain is the end of another, so ports carry less than the middle of a chain
    /// does.
    pub(super) fn port(&self, case: &PhysicsCase) -> f64 {
        match case.algorithm {
            NcclAlgorithm::Tree if case.devices > 2.0 => self.through * case.devices / (case.devices - 1.0),
            _ => self.through,
        }
    }

    pub(super) fn all(&self) -> f64 {
        self.inside.min(self.across)
    }
}

/// The bandwidth out of a GPU to the others of its node, in GB/s.
///
/// A channel of a ring takes all steps of a chunk one after another. Of n ranks' n or 2n - 1 steps the last only receives (`ringRun` of
/// NCCL's `src/device/all_gather.h` and `all_reduce.h`). A channel adds numbers of one byte more slowly than NVLink carries them
/// (`src/device/reduce_kernel.h`). Over PCIe channels wait for the link, and the last step costs less than this: two L40S are predicted 1.25
/// times too slow.
fn port(case: &PhysicsCase, parameters: &Parameters, terms: Terms) -> f64 {
    let kind = match (case.machine.nvlink, case.machine.peer) {
        (true, _) => link(case.machine.generation),
        (_, true) => LINK_PCIE,
        _ => LINK_COPIED,
    };
    let achieved = terms.has(ModelTerm::LinkEfficiency);
    let pairs = if case.machine.nvlink && !case.machine.switched { parameters.at(LINK_PAIRS) } else { 1.0 };
    let mut port = case.machine.port * if achieved { parameters.at(kind) * pairs } else { 1.0 };
    if kind == LINK_PCIE && case.devices > 2.0 && achieved {
        port *= parameters.at(LINK_BRIDGES);
    }
    if kind == LINK_COPIED {
        // All bytes pass the link between a PCIe switch and the host.
        port = port.min(case.machine.port / case.machine.sharing_uplink);
    }
    let ring = (case.algorithm, case.protocol) == (NcclAlgorithm::Ring, Protocol::Simple);
    if !ring || case.nodes > 1.0 || !terms.has(ModelTerm::RingEnd) {
        return port;
    }
    let others = case.ranks - 1.0;
    let (steps, adding) = match case.collective {
        Collective::AllReduce => (2.0 * others, others),
        Collective::ReduceScatter => (others, others),
        Collective::AllGather => (others, 0.0),
        _ => return port,
    };
    let bytes = if case.adds_bytes && case.machine.nvlink { parameters.at(RING_BYTES) } else { 0.0 };
    port * steps / (steps + parameters.at(RING_END) + adding * bytes)
}

/// The bytes through a GPU's port of `port` GB/s per byte of an all-to-all within its node. Over NVLink, the channels that send also copy
/// the GPU's part for itself, which takes longer than the link saves; sends over PCIe leave them time for it.
fn sent(case: &PhysicsCase, parameters: &Parameters, terms: Terms, port: f64) -> f64 {
    let others = (case.ranks - 1.0) / case.ranks;
    match (case.machine.nvlink, terms.has(ModelTerm::OwnPart)) {
        (false, true) => others,
        (_, false) => others / parameters.at(P2P),
        _ => others / parameters.at(P2P) + port / parameters.at(P2P_COPY) / case.ranks,
    }
}

/// The bytes out of the busiest node per byte of an all-reduce by a double binary tree: half of the bytes for each neighbour in either
/// of the two trees. An inner node of three is inner in one tree, and a leaf or a root in the other.
fn out_of_trees(nodes: f64) -> f64 {
    match nodes {
        ..=2.0 => 1.0,
        3.0 => 1.5,
        _ => 2.0,
    }
}

/// The bandwidth out of a node, in GB/s.
fn network(case: &PhysicsCase, parameters: &Parameters, terms: Terms) -> f64 {
    let fabric = terms.has(ModelTerm::NicFamily).then_some(case.machine.fabric);
    let sockets = case.machine.fabric == Fabric::Sockets;
    let mut share = if terms.has(ModelTerm::LinkEfficiency) { parameters.family(SHARE, fabric) } else { 1.0 };
    if !case.machine.direct && !sockets && terms.has(ModelTerm::HostStaging) {
        share *= parameters.at(SHARE_COPIED);
    }
    if terms.has(ModelTerm::Congestion) && case.nodes > 64.0 {
        // Measured for GH200 over Slingshot: 92 GB/s on 4 to 64 nodes, 66 GB/s on 512 nodes.
        share *= 0.895f64.powf((case.nodes / 64.0).log2());
    }
    let all = case.machine.network * share;
    match sockets && terms.has(ModelTerm::Sockets) {
        true => all.min(parameters.at(SOCKET) * case.machine.nics),
        false => all,
    }
}

/// The additional time until the first chunk has passed every hop of a tree, before the pipeline is full; 0 for other algorithms
/// and for LL and LL128.
fn fill(case: &PhysicsCase, parameters: &Parameters, terms: Terms, rates: &Rates) -> f64 {
    // LL and LL128 have flags within the data, so that a rank can forward a part of a chunk.
    let whole = case.protocol == Protocol::Simple;
    if !(terms.has(ModelTerm::PipelineFill)
        && whole
        && matches!(case.algorithm, NcclAlgorithm::Tree | NcclAlgorithm::NvlsTree))
    {
        return 0.0;
    }
    let (inside, across) = chain(case);
    let chunk = 512.0 * 1024.0;
    let all = (chunk * case.channels).min(case.bytes);
    parameters.at(FILL) * (inside + across - 1.0).max(0.0) * all / 1e3 / rates.all()
}
