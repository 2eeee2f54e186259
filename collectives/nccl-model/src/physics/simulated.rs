//! The time of a call by simulating the call's schedule on its links.
//!
//! ```text
//! case --> layout (one schedule for all channels, which are equal) --.
//!     '--> links: bandwidth of all channels together, latency per hop --+--> simulate --> host, first call --> us
//! ```
//!
//! LL sends a flag with every 4 bytes, so that a link carries half the data; LL128 sends a flag with every 120 bytes. Both forward
//! the part of a chunk that has arrived, which means many small pieces; Simple waits for whole chunks.

use super::super::layout::{ChannelLayout, Extra, layout};
use super::super::{NcclAlgorithm, Protocol};
use super::closed::{Rates, base, closed, hop, outside, step};
use super::matching::matching;
use super::{Parameters, PhysicsCase, Terms};
use allfold_schedules::{Collective, Geometry};
use allfold_sim::topology::Edge;
use allfold_sim::{BytesPerSec, Costs, Link, Picos, Topology};
use allfold_timing::{Engine, Error, Job, Method, simulate};

/// From this number of ranks on, chunks that differ by a byte are made equal, so that one rank represents many.
const MANY: u32 = 512;

/// The result of simulating a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated {
    /// The predicted time in microseconds.
    pub time_us: f64,
    /// The number of messages of the schedule; 0 if there is no schedule and the closed form is used.
    pub messages: u64,
    /// The number of messages that repeat earlier ones and were skipped, with exact results.
    pub skipped: u64,
    /// The engine that found the time; `None` for the closed form.
    pub method: Option<Method>,
    /// The number of steps that a rank may have in flight.
    pub window: u32,
    /// The lower bound of the time of this collective on these links, in microseconds; `None` for the closed form.
    pub bound_us: Option<f64>,
}

/// Simulates a call.
///
/// # Errors
/// The errors of [`simulate`].
pub fn simulated(case: &PhysicsCase, parameters: &Parameters, terms: Terms) -> Result<Simulated, Error> {
    let most = f64::from(MOST_PIECES) * chunk(case) * case.running.max(1.0);
    // Chunks of other protocols and algorithms are so small that more of them are in flight than are simulated.
    let pipelined = case.algorithm == NcclAlgorithm::Tree && case.protocol == Protocol::Simple;
    if !pipelined || case.bytes <= most {
        return in_pieces(case, parameters, terms);
    }
    // More pieces than are simulated: each half of them takes as long as the second half of these.
    let all = in_pieces(&PhysicsCase { bytes: most.floor(), ..*case }, parameters, terms)?;
    let half = in_pieces(&PhysicsCase { bytes: (most / 2.0).floor(), ..*case }, parameters, terms)?;
    let times = 2.0 * (case.bytes - most) / most;
    let beyond = |all: f64, half: f64| all + times * (all - half);
    let bound_us = all.bound_us.zip(half.bound_us).map(|(all, half)| beyond(all, half));
    Ok(Simulated { time_us: beyond(all.time_us, half.time_us), bound_us, ..all })
}

/// The largest number of pieces of a chunk that are simulated.
const MOST_PIECES: u32 = 32;

/// Simulates a call that is cut into at most [`MOST_PIECES`] pieces for pipelining.
fn in_pieces(case: &PhysicsCase, parameters: &Parameters, terms: Terms) -> Result<Simulated, Error> {
    let (all, devices) = (case.nodes as u32, case.devices as u32);
    // If the network's switches reduce, all nodes act in the same way at the same time, so two nodes represent all.
    let collnet = matches!(case.algorithm, NcclAlgorithm::CollNetDirect | NcclAlgorithm::CollNetChain);
    let nodes = if collnet { all.min(2) } else { all };
    let Some(found) = layout(case.collective, case.algorithm, nodes, devices, pieces(case)) else {
        let time_us = closed(case, parameters, terms);
        return Ok(Simulated { time_us, messages: 0, skipped: 0, method: None, window: 1, bound_us: None });
    };
    let topology = links(case, nodes, parameters, terms, &found)?;
    let bytes = case.bytes as u64;
    let ranks = found.schedule.ranks();
    let blocked = matches!(case.collective, Collective::AllGather | Collective::ReduceScatter);
    let geometry = match blocked {
        true => Geometry::blocked(&*found.schedule, (bytes / u64::from(ranks)).max(1)),
        false => Geometry::whole(&*found.schedule, bytes.max(1)),
    };
    let costs = Costs { launch: micros(base(case, parameters, terms)), ..Costs::FREE };
    let job = Job { costs, window: found.window, ..Job::new(&*found.schedule, &geometry, 1, &topology) };
    let engine = if ranks < MANY { Engine::Auto } else { Engine::BySymmetryRounded };
    let outcome = match simulate(&job, engine) {
        Err(Error::NoSymmetry { .. }) => simulate(&job, Engine::Auto)?,
        outcome => outcome?,
    };
    let device = outcome.time.as_micros().max(matching(case, parameters, terms));
    let time_us = outside(case, parameters, terms, device);
    Ok(Simulated {
        time_us,
        messages: outcome.messages * u64::from(all) / u64::from(nodes.max(1)),
        skipped: outcome.skipped,
        method: Some(outcome.method),
        window: found.window,
        bound_us: Some(outcome.bounds.greatest().0.as_micros()),
    })
}

/// The bytes of a chunk of one channel.
fn chunk(case: &PhysicsCase) -> f64 {
    match (case.protocol, case.algorithm) {
        (Protocol::Ll | Protocol::Ll128, _) => 16.0 * 1024.0,
        // Runs show no measurable time for filling a ring's chain, so its chunks are small; NCCL's chunks for NVLS are of the same size.
        (_, NcclAlgorithm::Ring | NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree) => 64.0 * 1024.0,
        (Protocol::Simple, _) => 512.0 * 1024.0,
    }
}

/// The number of pieces into which every chunk of the schedule is cut.
fn pieces(case: &PhysicsCase) -> u32 {
    let pieces = (case.bytes / case.running.max(1.0) / chunk(case)).ceil();
    match (case.algorithm, case.collective) {
        (NcclAlgorithm::Ring, Collective::Broadcast | Collective::Reduce) => pieces.clamp(1.0, 64.0) as u32,
        (NcclAlgorithm::Ring | NcclAlgorithm::Pat, _) => 1,
        _ => pieces.clamp(1.0, f64::from(MOST_PIECES)) as u32,
    }
}

fn micros(us: f64) -> Picos {
    Picos((us * 1e6).round().max(0.0) as u64)
}

/// The topology for one schedule that represents all channels.
fn links(
    case: &PhysicsCase,
    nodes: u32,
    parameters: &Parameters,
    terms: Terms,
    found: &ChannelLayout,
) -> Result<Topology, Error> {
    let rates = Rates::of(case, parameters, terms);
    let rate = |gbps: f64| BytesPerSec((gbps * 1e9).max(1.0) as u64);
    let devices = case.devices as u32;
    let inside = rates.port(case);
    let across = if nodes > 1 { rates.network } else { inside };
    let half = |us: f64| micros(us / 2.0);
    let hop = half(if nodes > 1 { hop(case, parameters, terms) } else { 0.0 });
    let port = Link { bandwidth: rate(inside), latency: half(step(case, parameters)) };
    let nic = Link { bandwidth: rate(across), latency: hop };
    let ranks = found.schedule.ranks();
    let built = match (found.extra, nodes) {
        (Extra::Nothing, 1) => Topology::switch(ranks, port),
        (Extra::Nothing, _) => Topology::nodes(ranks, devices, 1, port, nic),
        (Extra::NodeSwitches, _) => switches(nodes, devices, port, nic),
        (Extra::Network, _) => network(nodes, devices, port, nic),
    };
    built.map_err(|error| Error::Job(error.to_string()))
}

/// A topology of nodes whose GPUs are connected to a switch, which is the node's last rank; a non-blocking switch connects the
/// switches of all nodes.
fn switches(nodes: u32, devices: u32, port: Link, nic: Link) -> allfold_sim::Result<Topology> {
    let size = devices + 1;
    let ranks = nodes * size;
    let mut edges = Vec::new();
    let mut join = |one: u32, other: u32, link: Link| {
        edges.push(Edge { from: one, to: other, link });
        edges.push(Edge { from: other, to: one, link });
    };
    for node in 0..nodes {
        let switch = node * size + devices;
        (0..devices).for_each(|gpu| join(node * size + gpu, switch, port));
        if nodes > 1 {
            join(switch, ranks, nic);
        }
    }
    let network = if nodes > 1 { vec!["network".to_string()] } else { Vec::new() };
    Topology::graph(ranks, &network, edges)
}

/// A topology of nodes whose GPUs are connected to a non-blocking switch, which is not a rank; the nodes' switches are connected to
/// the network, which is the last rank.
fn network(nodes: u32, devices: u32, port: Link, nic: Link) -> allfold_sim::Result<Topology> {
    let ranks = nodes * devices + 1;
    let mut edges = Vec::new();
    let mut join = |one: u32, other: u32, link: Link| {
        edges.push(Edge { from: one, to: other, link });
        edges.push(Edge { from: other, to: one, link });
    };
    for node in 0..nodes {
        (0..devices).for_each(|gpu| join(node * devices + gpu, ranks + node, port));
        // `nic.latency` is half of a hop's; a message into the network or out of it takes a whole hop's.
        join(ranks + node, ranks - 1, Link { latency: nic.latency * 2, ..nic });
    }
    let joints: Vec<String> = (0..nodes).map(|node| format!("node{node}")).collect();
    Topology::graph(ranks, &joints, edges)
}

#[cfg(test)]
mod tests {
    use super::super::parameters::{MATCH, MATCH_RATE};
    use super::super::{ModelTerm, Setting, Terms};
    use super::*;
    use crate::{Library, Overrides, Platform};
    use allfold_sim::machines::{Description, Machine};

    fn setting(gpu: &str, nodes: u32, devices: u32, inside: &str, nics: &str) -> Setting {
        let words = Description {
            gpu: Some(gpu.into()),
            gpus_per_node: Some(devices),
            nodes: Some(nodes),
            intra_node: Some(inside.into()),
            inter_node: Some(nics.into()),
            ..Description::default()
        };
        let machine = Machine::understand(&words).unwrap();
        let platform = Platform::of(&machine, machine.devices * machine.nodes, Library::default());
        Setting { machine, platform, overrides: Overrides::default(), driven: 1, host_stores: None }
    }

    /// The times of a call in microseconds: simulated, and in closed form.
    fn both(
        setting: &Setting,
        algorithm: NcclAlgorithm,
        protocol: Protocol,
        what: Collective,
        bytes: u64,
    ) -> (f64, f64) {
        let (parameters, terms) = (Parameters::default(), Terms::default());
        let case = setting.with(what, bytes, false, algorithm, protocol);
        (simulated(&case, &parameters, terms).unwrap().time_us, closed(&case, &parameters, terms))
    }

    #[test]
    fn a_full_pipeline_reaches_the_narrowest_link() {
        let two = setting("H100", 2, 8, "NVLink4 NVSwitch", "8x400Gb/s RoCE");
        let ten = setting("H100", 10, 8, "NVLink4 NVSwitch", "8x400Gb/s IB NDR");
        let rack = setting("GB200", 18, 4, "NVL72", "");
        for (name, setting, algorithm) in [
            ("tree", &two, NcclAlgorithm::Tree),
            ("tree", &ten, NcclAlgorithm::Tree),
            ("switch and tree", &two, NcclAlgorithm::NvlsTree),
            ("switch and tree", &ten, NcclAlgorithm::NvlsTree),
            ("switch of 72", &rack, NcclAlgorithm::Nvls),
            ("ring", &two, NcclAlgorithm::Ring),
            ("network and chains", &ten, NcclAlgorithm::CollNetChain),
            ("network and exchange", &ten, NcclAlgorithm::CollNetDirect),
        ] {
            for bytes in [256u64 << 20, 8 << 30] {
                let (simulated, closed) =
                    both(setting, algorithm, Protocol::Simple, Collective::AllReduce, bytes);
                let off = simulated / closed;
                assert!((0.8..1.25).contains(&off), "{name}, {bytes} B: {simulated} us, closed {closed}");
            }
        }
    }

    #[test]
    fn a_large_call_by_trees_takes_its_bytes_over_the_network_alone() {
        // Three nodes: the busiest sends half as much again as the call has bytes.
        let three = setting("GB200", 3, 4, "NVLink5", "4x400Gb/s IB NDR");
        let what = Collective::AllReduce;
        let time = |bytes| both(&three, NcclAlgorithm::Tree, Protocol::Simple, what, bytes).0;
        let gb_per_s = 8.0 * f64::from(1 << 30) / (time(16 << 30) - time(8 << 30)) / 1e3;
        let wanted = 200.0 * 0.95 * 0.92 / 1.5;
        assert!((gb_per_s / wanted - 1.0).abs() < 0.05, "{gb_per_s} GB/s, not {wanted}");
    }

    #[test]
    fn an_all_to_all_is_bound_by_ports_or_nics() {
        let rate = |setting: &Setting| {
            let case = setting.case(Collective::AllToAll, 8 << 30, false).unwrap();
            let time = closed(&case, &Parameters::default(), Terms::default());
            case.bytes * (case.ranks - 1.0) / case.ranks / time / 1e3
        };
        let one = rate(&setting("H100", 1, 8, "NVLink4 NVSwitch", ""));
        // The port sends seven parts of eight, and 800 GB/s of copies in memory follow for the eighth.
        let wanted = 1.0 / (1.0 / (370.8 * 0.85) + 1.0 / (7.0 * 800.0));
        assert!((one / wanted - 1.0).abs() < 0.01, "{one} GB/s of a port, not {wanted}");
        let cards = rate(&setting("L40S", 1, 2, "PCIe 4.0", ""));
        assert!((cards / (24.0 * 0.83) - 1.0).abs() < 0.01, "{cards} GB/s over PCIe");
        // Half of a node's bytes leave it, over 50 GB/s for each GPU.
        let two = rate(&setting("H100", 2, 8, "NVLink4 NVSwitch", "8x400Gb/s IB NDR"));
        assert!((two / (50.0 * 0.95 * 0.85 * 15.0 / 8.0) - 1.0).abs() < 0.03, "{two} GB/s a GPU");
        let small =
            setting("H100", 1, 8, "NVLink4 NVSwitch", "").case(Collective::AllToAll, 8 << 14, false).unwrap();
        assert_eq!((small.protocol, small.tuner_us.is_nan()), (Protocol::Ll, true));
    }

    #[test]
    fn an_all_to_all_starts_as_soon_with_simple_as_with_ll() {
        let setting = setting("H100", 1, 8, "NVLink4 NVSwitch", "");
        let of = |each: u64| setting.case(Collective::AllToAll, 8 * each, false).unwrap();
        let (ll, simple) = (of(16 << 10), of(32 << 10));
        assert_eq!((ll.protocol, simple.protocol), (Protocol::Ll, Protocol::Simple));
        let terms = Terms::default().without(ModelTerm::GpuClock);
        let start =
            |parameters: &Parameters| (base(&ll, parameters, terms), base(&simple, parameters, terms));
        let mut parameters = Parameters::default();
        let (with_ll, with_simple) = start(&parameters);
        assert!((with_ll - 6.6).abs() < 1e-9 && (with_simple - with_ll).abs() < 1e-9);
        // The rings' start with Simple does not matter, that with LL does.
        for (name, times) in [("base.Simple", 1.0), ("base.LL", 3.0)] {
            let number =
                super::super::PARAMETERS.iter().position(|parameter| parameter.name == name).unwrap();
            parameters.set(number, 3.0);
            let (ll, simple) = start(&parameters);
            assert!((ll / with_ll - times).abs() < 1e-9 && (simple - ll).abs() < 1e-9, "{name}");
        }
    }

    #[test]
    fn a_call_starts_after_a_number_of_clock_cycles() {
        let start = |gpu: &str| {
            let case =
                setting(gpu, 1, 8, "NVLink NVSwitch", "").case(Collective::AllGather, 8, false).unwrap();
            base(&case, &Parameters::default(), Terms::default())
        };
        // A100: 1.41 GHz; H100: 1.98 GHz.
        assert!((start("A100 SXM") / start("H100 SXM") - 1.98 / 1.41).abs() < 1e-9);
    }

    #[test]
    fn the_last_step_of_a_ring_sends_nothing() {
        let end = Parameters::default().at(super::super::parameters::RING_END);
        for ranks in [2, 4, 8] {
            let setting = setting("A100", 1, ranks, "NVLink3 NVSwitch", "");
            let rate = |what: Collective| {
                let (simulated, closed) =
                    both(&setting, NcclAlgorithm::Ring, Protocol::Simple, what, 8 << 30);
                assert!((simulated / closed - 1.0).abs() < 0.01, "{simulated} us, closed {closed}");
                what.bus_factor(ranks) / closed
            };
            let steps = f64::from(ranks - 1);
            let wanted = (steps + end) / (steps + end / 2.0);
            let found = rate(Collective::AllReduce) / rate(Collective::AllGather);
            assert!((found / wanted - 1.0).abs() < 0.01, "{ranks} ranks: {found}, not {wanted}");
        }
    }

    #[test]
    fn children_of_a_tree_do_not_wait_for_each_other() {
        for nodes in [2, 4, 8] {
            let setting = setting("A100", nodes, 8, "NVLink3 NVSwitch", "8x200Gb/s IB HDR");
            let (simulated, closed) =
                both(&setting, NcclAlgorithm::Tree, Protocol::Ll, Collective::AllReduce, 8);
            assert!(
                (simulated / closed - 1.0).abs() < 0.02,
                "{nodes} nodes: {simulated} us, closed {closed}"
            );
        }
    }

    #[test]
    fn a_few_ranks_stand_for_all_of_a_large_ring() {
        let calls = [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce];
        for (nodes, what) in [6, 64].into_iter().flat_map(|nodes| calls.map(|what| (nodes, what))) {
            let setting = setting("A100", nodes, 8, "NVLink3 NVSwitch", "8x200Gb/s IB HDR");
            // A multiple of the ranks: equal chunks.
            let case =
                setting.with(what, u64::from(nodes) * (8 << 12), false, NcclAlgorithm::Ring, Protocol::Ll);
            let (parameters, terms) = (Parameters::default(), Terms::default());
            let found = simulated(&case, &parameters, terms).unwrap();
            assert!(
                matches!(found.method, Some(Method::EventsBySymmetry | Method::ClocksBySymmetry)),
                "{found:?}"
            );
            let whole = layout(what, NcclAlgorithm::Ring, nodes, 8, pieces(&case)).unwrap();
            let topology = links(&case, nodes, &parameters, terms, &whole).unwrap();
            let geometry = match what {
                Collective::AllReduce => Geometry::whole(&*whole.schedule, case.bytes as u64),
                _ => Geometry::blocked(&*whole.schedule, case.bytes as u64 / u64::from(nodes * 8)),
            };
            let job = Job { window: whole.window, ..Job::new(&*whole.schedule, &geometry, 1, &topology) };
            let time = |engine| simulate(&job, engine).unwrap().time;
            assert_eq!(time(Engine::BySymmetry), time(Engine::Full), "{what} on {nodes} nodes");
        }
    }

    #[test]
    fn one_of_two_mirrored_trees_takes_the_time_of_both() {
        for (nodes, devices, bytes, folded) in [
            (2, 3, 1 << 10, 2),
            (4, 2, 300_000, 2),
            (6, 8, 1 << 20, 2),
            (10, 4, 5_000_002, 2),
            (12, 8, 32 << 20, 2),
            // An odd number of bytes, and of nodes.
            (6, 8, (1 << 20) + 1, 1),
            (5, 2, 1 << 20, 1),
        ] {
            for protocol in [Protocol::Ll, Protocol::Simple] {
                let setting = setting("A100", nodes, devices, "NVLink3 NVSwitch", "8x200Gb/s IB HDR");
                let case = setting.with(Collective::AllReduce, bytes, false, NcclAlgorithm::Tree, protocol);
                let (parameters, terms) = (Parameters::default(), Terms::default());
                let found = layout(case.collective, case.algorithm, nodes, devices, pieces(&case)).unwrap();
                let topology = links(&case, nodes, &parameters, terms, &found).unwrap();
                let geometry = Geometry::whole(&*found.schedule, bytes);
                let job = Job { window: found.window, ..Job::new(&*found.schedule, &geometry, 1, &topology) };
                let one = simulate(&job, Engine::Auto).unwrap();
                let both = simulate(&job, Engine::Events).unwrap();
                assert_eq!((one.folded, both.folded), (folded, 1), "{nodes} x {devices}, {bytes} B");
                assert_eq!((one.time, one.finish, one.links), (both.time, both.finish, both.links));
                assert_eq!((one.messages, one.bytes, one.bounds), (both.messages, both.bytes, both.bounds));
            }
        }
    }

    #[test]
    fn buffers_of_a_ring_cover_a_slow_hop() {
        let setting = setting("H100", 2, 8, "NVLink4 NVSwitch", "8x200Gb/s GPUDirect-TCPXO");
        let (simulated, closed) =
            both(&setting, NcclAlgorithm::Ring, Protocol::Ll, Collective::AllGather, 1024);
        assert!((simulated / closed - 1.0).abs() < 0.1, "{simulated} us, closed {closed}");
    }

    #[test]
    fn a_host_that_matches_messages_copies_one_after_the_other() {
        let nic = setting("GH200", 2, 4, "NVLink4 direct", "4x Slingshot-11 200 Gb/s");
        let host = Setting { host_stores: Some(4096.0), ..nic.clone() };
        let times = |of: &Setting, protocol, bytes| {
            both(of, NcclAlgorithm::Ring, protocol, Collective::AllReduce, bytes)
        };
        // Messages of 16 KiB with flags: 14 for each of two channels per NIC.
        let parameters = Parameters::default();
        let copy = parameters.at(MATCH) + 16.384 / parameters.at(MATCH_RATE);
        let copies = 2.0 * 14.0 * copy;
        let (simulated, closed) = times(&host, Protocol::Ll, 512 << 10);
        assert!((simulated - copies).abs() < 1e-6 && (closed - copies).abs() < 1e-6, "{simulated} {closed}");
        assert!(times(&nic, Protocol::Ll, 512 << 10).0 < 0.8 * simulated);
        // Matching by the host changes neither time: up to 4 KiB the host stores a message itself, without a call of the driver,
        // and a large message takes longer on the wire than its copies take.
        for (protocol, bytes) in [(Protocol::Ll, 4096), (Protocol::Simple, 1 << 30)] {
            assert_eq!(times(&host, protocol, bytes), times(&nic, protocol, bytes));
        }
    }
}
