//! Builds the topology of a cluster of many equal nodes from the graph of one node.

use super::nics::Exit;
use super::paths::DirectedLink;
use super::{LinkKind, Node, NodeLink};
use crate::topology::{Cluster, Hop, Kind as Family};
use crate::{BytesPerSec, Error, Link, Picos, Result, Topology};
use std::collections::BTreeMap;

/// How the network connects the nodes' NICs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fabrics {
    /// The oversubscription of the pods: how many times more the NICs of a pod can send than its uplinks carry; 1 is a full fat
    /// tree. `None` for a single non-blocking switch.
    pub oversubscription: Option<f64>,
    /// The number of nodes of a pod.
    pub pod: u32,
    /// Whether each NIC number of a node has leaf switches of its own (a rail-optimised network).
    pub rails: bool,
}

impl Fabrics {
    /// A single non-blocking switch.
    pub const FLAT: Fabrics = Fabrics { oversubscription: None, pod: 32, rails: true };
}

/// Extra latency of a path over the spine, which crosses two more switches: 130 ns from port to port (NVIDIA Quantum QM8700
/// datasheet).
const SPINE_NANOS: u64 = 260;

impl Node {
    /// The topology of `ranks` devices on as many nodes as they need.
    ///
    /// # Errors
    /// Devices without a path between them; more than one node but a device that reaches no NIC; 0 or more than 1024 devices.
    pub fn topology(&self, ranks: u32, fabrics: Fabrics) -> Result<Topology> {
        let wrong = |what: String| Err(Error::Topology(format!("{}: {what}", self.name)));
        if self.devices == 0 || self.devices > 1024 {
            return wrong(format!("{} devices in a node; there may be 1 to 1024", self.devices));
        }
        let across = ranks > self.devices;
        let exits: Vec<Option<Exit>> = if across { self.exits() } else { Vec::new() };
        if let Some(device) = exits.iter().position(Option::is_none) {
            return wrong(format!(
                "device {device} reaches no NIC, so {ranks} ranks cannot be joined; \
                 name the NICs, or use at most {} ranks",
                self.devices
            ));
        }
        let exits: Vec<Exit> = exits.into_iter().flatten().collect();
        let spine = across.then_some(fabrics.oversubscription).flatten();
        if let (Some(port), None) = (self.even_port(), spine) {
            if let Some(nic) = self.even_nics(&exits).filter(|_| across) {
                return Ok(Topology::nodes(ranks, self.devices, nic.0, port, nic.1)?.renamed(&self.name));
            }
            if !across {
                return Ok(Topology::switch(ranks, port)?.renamed(&self.name));
            }
        }
        self.cluster(ranks, &exits, spine, fabrics)
    }

    fn cluster(&self, ranks: u32, exits: &[Exit], spine: Option<f64>, fabrics: Fabrics) -> Result<Topology> {
        let n = self.devices;
        let mut drawn = Drawn { node: self, kinds: Vec::new(), known: BTreeMap::new() };
        let even = self.even_port();
        let inside = self.inside(ranks, even, &mut drawn)?;
        let (mut out, mut into, mut leaf, mut nics) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for exit in exits {
            let number = exit.nics.first().copied().unwrap_or(0);
            // With equal NVLinks from all devices to one switch, the path from a device to its NIC is left out, and only the NIC's
            // link is modelled, as slow as that path.
            let speed = match even {
                Some(_) => self.through(exit, exits.iter().filter(|other| other.nics == exit.nics).count()),
                None => exit.gb_per_s,
            };
            let link = link(speed, self.network_nanos / 2);
            let (sends, receives) = (
                drawn.once(&format!("nic{number}_out"), n, link),
                drawn.once(&format!("nic{number}_in"), n, link),
            );
            let path = if even.is_some() { Vec::new() } else { drawn.hops(&exit.path, false)? };
            let back: Vec<DirectedLink> = exit.path.iter().rev().map(|(wire, back)| (*wire, !back)).collect();
            let back = if even.is_some() { Vec::new() } else { drawn.hops(&back, true)? };
            out.push([path, vec![Hop { family: sends, receiver: false }]].concat());
            into.push([vec![Hop { family: receives, receiver: true }], back].concat());
            if !nics.contains(&sends) {
                nics.push(sends);
            }
            leaf.push(if fabrics.rails { number as u16 } else { 0 });
        }
        let (mut up, mut down, mut over) = (Vec::new(), Vec::new(), Vec::new());
        let pod = if spine.is_some() { fabrics.pod.max(1).saturating_mul(n) } else { 0 };
        if let Some(ratio) = spine {
            for exit in exits {
                // The uplink carries what all of the leaf's NICs in the pod can send, divided by the oversubscription.
                let number = exit.nics.first().copied().unwrap_or(0);
                let mine = |other: &&Exit| !fabrics.rails || other.nics.first() == Some(&number);
                let mut shared: Vec<(&[u32], f64)> = Vec::new();
                for other in exits.iter().filter(mine) {
                    if !shared.iter().any(|(nics, _)| *nics == &other.nics[..]) {
                        shared.push((&other.nics, other.gb_per_s));
                    }
                }
                let all: f64 = shared.iter().map(|(_, gb_per_s)| gb_per_s).sum();
                let name = if fabrics.rails { format!("spine{number}") } else { "spine".into() };
                let link = link(all * f64::from(fabrics.pod) / ratio, SPINE_NANOS / 2);
                let (a, b) = (
                    drawn.once(&format!("{name}_up"), pod, link),
                    drawn.once(&format!("{name}_down"), pod, link),
                );
                up.push(Hop { family: a, receiver: false });
                down.push(Hop { family: b, receiver: true });
                if !over.contains(&a) {
                    over.push(a);
                }
            }
        }
        let cluster = Cluster { devices: n, pod, inside, out, into, leaf, up, down, nics, spine: over };
        Topology::cluster(&self.name, ranks, &drawn.kinds, cluster)
    }

    /// The path from each device of a node to each other one.
    fn inside(&self, ranks: u32, even: Option<Link>, drawn: &mut Drawn<'_>) -> Result<Vec<Vec<Hop>>> {
        let n = self.devices;
        let mut inside = vec![Vec::new(); (n * n) as usize];
        if let Some(port) = even {
            let (up, down) = (drawn.family("up", 1, port), drawn.family("down", 1, port));
            for pair in (0..n * n).filter(|pair| pair / n != pair % n) {
                inside[pair as usize] =
                    vec![Hop { family: up, receiver: false }, Hop { family: down, receiver: true }];
            }
        } else {
            for from in 0..n.min(ranks) {
                let paths = self.paths(from, false);
                for to in (0..n.min(ranks)).filter(|to| *to != from) {
                    let Some(Some(path)) = paths.get(to as usize) else {
                        return Err(Error::Topology(format!(
                            "{}: nothing joins device {from} to device {to}",
                            self.name
                        )));
                    };
                    inside[(from * n + to) as usize] = drawn.hops(path, false)?;
                }
            }
        }
        Ok(inside)
    }

    /// The link of every device to the NVLink switch, if all devices have an equal link to the same switch, or if there is only one
    /// device.
    fn even_port(&self) -> Option<Link> {
        let nvlinks: Vec<&NodeLink> =
            self.links.iter().filter(|wire| wire.kind == LinkKind::NvLink).collect();
        if self.devices == 1 {
            // No link inside the node is crossed, so any link that is never slower than the NIC can be used.
            return Some(link(1e6, 0));
        }
        let first = nvlinks.first()?;
        let switch = first.a.max(first.b);
        let alike = |wire: &&NodeLink| wire.a.max(wire.b) == switch && wire.gb_per_s == first.gb_per_s;
        let each = (0..self.devices).all(|d| nvlinks.iter().filter(|w| w.a.min(w.b) == d).count() == 1);
        let even =
            switch >= self.devices && nvlinks.len() == self.devices as usize && nvlinks.iter().all(alike);
        (even && each).then(|| link(first.gb_per_s, first.nanos))
    }

    /// The number of NIC links of a node and the speed of each, if consecutive devices share them evenly.
    fn even_nics(&self, exits: &[Exit]) -> Option<(u32, Link)> {
        let first = exits.first()?;
        let share = exits.iter().take_while(|exit| exit.nics == first.nics).count();
        let alike = exits.chunks(share).all(|chunk| chunk.iter().all(|exit| exit.nics == chunk[0].nics));
        let apart =
            exits.chunks(share).map(|chunk| chunk[0].nics.first()).collect::<std::collections::BTreeSet<_>>();
        let links = exits.len() / share;
        let speeds: Vec<f64> = exits.iter().map(|exit| self.through(exit, share)).collect();
        let even = alike
            && apart.len() == links
            && exits.len().is_multiple_of(share)
            && speeds.iter().all(|speed| (speed - speeds[0]).abs() < 1e-9);
        even.then(|| (links as u32, link(speeds[0], self.network_nanos / 2)))
    }

    /// The speed in GB/s of an exit that `share` devices use: of its NICs, or of the PCI Express path to them, if that is slower.
    /// Devices that share a path divide its bandwidth.
    fn through(&self, exit: &Exit, share: usize) -> f64 {
        let links = exit.path.iter().filter_map(|(wire, _)| self.links.get(*wire as usize));
        let own = |wire: &NodeLink| share > 1 && wire.a.min(wire.b) < self.devices;
        links
            .map(|wire| wire.gb_per_s * if own(wire) { share as f64 } else { 1.0 })
            .fold(exit.gb_per_s, f64::min)
    }
}

fn link(gb_per_s: f64, nanos: u64) -> Link {
    Link {
        bandwidth: BytesPerSec(BytesPerSec::from_gb(gb_per_s.clamp(1e-6, 1e9)).0.max(1)),
        latency: Picos::from_nanos(nanos),
    }
}

/// The link families of a node, added when a path first uses them.
struct Drawn<'a> {
    node: &'a Node,
    kinds: Vec<Family>,
    known: BTreeMap<DirectedLink, u16>,
}

impl Drawn<'_> {
    fn family(&mut self, name: &str, block: u32, link: Link) -> u16 {
        self.kinds.push(Family { name: name.into(), block, link });
        (self.kinds.len() - 1) as u16
    }

    /// The index of the link family called `name`, which is added if it does not exist yet.
    fn once(&mut self, name: &str, block: u32, link: Link) -> u16 {
        match self.kinds.iter().position(|kind| kind.name == name) {
            Some(at) => at as u16,
            None => self.family(name, block, link),
        }
    }

    /// The hops of a path through the node, with one link family for each link and direction.
    fn hops(&mut self, path: &[DirectedLink], receiver: bool) -> Result<Vec<Hop>> {
        let mut hops = Vec::with_capacity(path.len());
        for &(number, back) in path {
            let family = match self.known.get(&(number, back)) {
                Some(&family) => family,
                None => {
                    let Some(wire) = self.node.links.get(number as usize) else {
                        return Err(Error::Topology(format!(
                            "{}: link {number} does not exist",
                            self.node.name
                        )));
                    };
                    let (a, b) = if back { (wire.b, wire.a) } else { (wire.a, wire.b) };
                    let name = format!("{}>{}", self.node.place(a), self.node.place(b));
                    let name = match self.kinds.iter().any(|kind| kind.name == name) {
                        true => format!("{name}#{number}"),
                        false => name,
                    };
                    let family = self.family(&name, self.node.devices, link(wire.gb_per_s, wire.nanos));
                    self.known.insert((number, back), family);
                    family
                }
            };
            hops.push(Hop { family, receiver });
        }
        Ok(hops)
    }
}
