//! A model of NCCL's graph search: the number of channels on a machine, and the speed of each.
//!
//! ```text
//! speeds are tried from the fastest       GPU's port of 240 GB/s: 40 x 6, split since 25 or more --> 20 x 12
//! the greatest total is chosen            port of 371 GB/s, 8 NICs of 50 GB/s: 48 x 7 or 45 x 8  --> 45 x 8
//! ```
//!
//! Rings need as much bandwidth within a node as across nodes; trees over two nodes may use twice as much within a node. Tables:
//! NCCL 2.29, `src/graph/search.cc`. The search results of a real machine are in its `NCCL_GRAPH_DUMP_FILE`.

use super::{Arch, Graph, HostCpu, Inside, Platform};
use allfold_sim::machines::{self, Fabric, Generation, Machine};

const INSIDE: [[f64; 13]; 3] = [
    [40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0],
    [60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0, 3.0, 3.0],
    [90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0, 18.0],
];
const ACROSS: [[f64; 16]; 3] = [
    [48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4],
    [48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2, 0.6],
    [96.0, 86.0, 80.0, 48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 15.0, 12.0, 6.0, 3.0, 1.2],
];
/// The greatest number of channels that the search tries.
const MOST: u32 = 32;

/// The properties of the NCCL library and its settings, which do not follow from the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Library {
    /// Major and minor version, such as (2, 23).
    pub version: (u32, u32),
    /// Whether the settings allow reduction in NVLink switches (`NCCL_NVLS_ENABLE`).
    pub nvls: bool,
    /// Whether reduction in the network's switches is possible (`NCCL_COLLNET_ENABLE` and a plugin).
    pub collnet: bool,
}

impl Default for Library {
    fn default() -> Library {
        Library { version: (2, 26), nvls: true, collnet: false }
    }
}

impl Platform {
    /// The machine as NCCL's tuner sees it, with `ranks` GPUs spread evenly over its nodes.
    pub fn of(machine: &Machine, ranks: u32, library: Library) -> Platform {
        let arch = arch(machine.gpu.generation);
        let port = machine.port().bandwidth().as_gb();
        let devices = (ranks / machine.nodes.max(1)).max(1);
        let table = (arch as usize).saturating_sub(1);
        let ring = match machine.nics {
            None => inside(port, devices, arch, table),
            Some(nics) => Graph {
                nic_us: if library.version >= (2, 12) { declared(nics.fabric, arch) } else { 0.0 },
                ..across(
                    port,
                    devices,
                    f64::from(nics.count),
                    nics.gbit_per_s / 8.0,
                    machine.through_pcie(),
                    table,
                )
            },
        };
        let twice = (2.0 * ring.across).min(port / f64::from(ring.channels)).max(ring.inside);
        let wide = machine.nodes == 2 && devices > 1 && library.version >= (2, 19);
        let wide = if wide { twice } else { ring.inside };
        let tree = Graph { inside: wide, ..ring };
        // NVLink switches reduce from five Hopper GPUs or six Blackwell GPUs on, according to nccl-tests runs.
        let least = if arch == Arch::Blackwell { 6 } else { 5 };
        let switches = machine.switched && arch >= Arch::Hopper && devices >= least;
        let nvls = (switches && library.nvls && library.version >= (2, 17)).then(|| {
            let channels = if arch == Arch::Hopper { 16 } else { 24 };
            let node = f64::from(ring.channels) * ring.across;
            let each = f64::from(channels);
            Graph { channels, inside: port / each, across: node / each, ..ring }
        });
        Platform {
            nodes: machine.nodes,
            ranks,
            arch,
            cpu: match machine.cpu {
                machines::Cpu::Intel => HostCpu::Intel,
                machines::Cpu::Amd => HostCpu::Amd,
                machines::Cpu::Arm => HostCpu::Other,
            },
            links: if machine.nvlink { Inside::NvLink } else { Inside::Pci },
            nvswitch: machine.switched,
            ll128: ll128(machine, devices),
            pat: library.version >= (2, 23),
            doubled: doubled(arch, &ring, machine.nodes, library),
            ring,
            tree,
            nvls,
            collnet: library.collnet.then_some(ring),
        }
    }
}

/// The number of channels that run for each found channel: two, or four if few fast channels cross nodes (since 2.27).
fn doubled(arch: Arch, ring: &Graph, nodes: u32, library: Library) -> u32 {
    let again = arch >= Arch::Hopper && nodes > 1 && ring.inside > 45.0 && 2 * ring.channels < 16;
    if again && library.version >= (2, 27) { 4 } else { 2 }
}

/// The latency in microseconds that a network plugin declares to the tuner: aws-ofi-nccl's table of instances (P4d, P5 and later).
/// NCCL's own transports declare none.
fn declared(fabric: Fabric, arch: Arch) -> f64 {
    match (fabric, arch) {
        (Fabric::Efa, Arch::Ampere) => 75.0,
        (Fabric::Efa, Arch::Hopper | Arch::Blackwell) => 35.0,
        _ => 0.0,
    }
}

/// Whether LL128 may be used: stores must stay in order, over NVLink and to a NIC behind the GPU's own PCIe switch.
fn ll128(machine: &Machine, devices: u32) -> bool {
    let inside = devices == 1 || machine.nvlink;
    let across = machine.nics.is_none_or(|nics| nics.gpudirect && machine.nics_behind_gpu_switch);
    inside && across && machine.gpu.generation >= Generation::Volta
}

fn arch(generation: Generation) -> Arch {
    match generation {
        Generation::Volta => Arch::Volta,
        Generation::Ampere => Arch::Ampere,
        // RCCL's tables equal those of NCCL at the time of Hopper.
        Generation::Hopper | Generation::Cdna => Arch::Hopper,
        Generation::Blackwell => Arch::Blackwell,
    }
}

/// The graph of one node. Fast channels are split in two: from 25 GB/s on; for Hopper and later from 50 GB/s on, if there are more
/// than 4.
fn inside(port: f64, devices: u32, arch: Arch, table: usize) -> Graph {
    let fits = |speed: f64| if devices > 1 { (port / speed) as u32 } else { 1 };
    let best = fastest(&INSIDE[table], port, fits).unwrap_or(Graph::inside(1, port));
    let split =
        if arch >= Arch::Hopper { best.inside >= 50.0 && best.channels > 4 } else { best.inside >= 25.0 };
    if split { Graph::inside(2 * best.channels, best.inside / 2.0) } else { best }
}

/// The graph across nodes: the number of channels that fit all NICs (whole channels per NIC), the PCIe links of all GPUs (`pcie` GB/s)
/// and one GPU's port, and their speed.
fn across(port: f64, devices: u32, nics: f64, nic: f64, pcie: f64, table: usize) -> Graph {
    let fits = |speed: f64| {
        let network = ((nic / speed).floor() * nics).min((pcie / speed).floor());
        let through = if devices > 1 { network.min((port / speed).floor()) } else { network };
        through as u32
    };
    fastest(&ACROSS[table], nic.min(port), fits).unwrap_or(Graph::inside(1, nic.min(port)))
}

/// The channels with the greatest total bandwidth, over the speeds from the fastest possible one down to half of it; of equal
/// totals, the fastest. `None` if no speed fits.
fn fastest(speeds: &[f64], most: f64, fits: impl Fn(f64) -> u32) -> Option<Graph> {
    let mut best: Option<Graph> = None;
    let first = speeds.iter().copied().find(|&speed| speed <= most && fits(speed) > 0)?;
    for &speed in speeds.iter().filter(|&&speed| speed <= first && speed > 0.49 * first) {
        let found = Graph::inside(fits(speed).min(MOST), speed);
        let total = |graph: Graph| f64::from(graph.channels) * graph.inside;
        if best.is_none_or(|best| total(found) > total(best)) {
            best = Some(found);
        }
    }
    best
}
