//! The time of a call by simulating its schedule on its links.
//!
//! ```text
//! case --> layout (one schedule for all channels, which are alike) --.
//!     '--> links: what all channels together get, latency per hop   --+--> simulate --> host, first call --> us
//! ```
//!
//! LL sends a flag with every 4 bytes, so that a link carries half; LL128 a flag with every 120. Both pass on what has
//! come so far, which is many small pieces; Simple waits for whole chunks.

use super::super::layout::{Layout, layout};
use super::super::{Algorithm, Protocol};
use super::closed::{Rates, base, closed, hop, outside, step};
use super::{Case, Parameters, Terms};
use crate::time::{Engine, Error, Job, simulate};
use crate::{Collective, Geometry};
use allfold_sim::topology::Edge;
use allfold_sim::{BytesPerSec, Costs, Link, Picos, Topology};

/// A simulated time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated {
    /// Microseconds.
    pub time_us: f64,
    /// Messages of the schedule; 0 where there is no schedule, and the closed form stands in for it: reduction in the
    /// network's switches.
    pub messages: u64,
}

/// Microseconds of a call.
///
/// # Errors
/// As [`simulate`].
pub fn simulated(case: &Case, parameters: &Parameters, terms: Terms) -> Result<Simulated, Error> {
    let (nodes, devices) = (case.nodes as u32, case.devices as u32);
    let Some(found) = layout(case.collective, case.algorithm, nodes, devices, pieces(case)) else {
        return Ok(Simulated { time_us: closed(case, parameters, terms), messages: 0 });
    };
    let topology = links(case, parameters, terms, &found)?;
    let bytes = case.bytes as u64;
    let ranks = found.schedule.ranks();
    let blocked = matches!(case.collective, Collective::AllGather | Collective::ReduceScatter);
    let geometry = match blocked {
        true => Geometry::blocked(&*found.schedule, (bytes / u64::from(ranks)).max(1)),
        false => Geometry::whole(&*found.schedule, bytes.max(1)),
    };
    let costs = Costs { launch: micros(base(case, parameters)), ..Costs::FREE };
    let job = Job { costs, window: found.window, ..Job::new(&*found.schedule, &geometry, 1, &topology) };
    let outcome = simulate(&job, Engine::Auto)?;
    let time_us = outside(case, parameters, terms, outcome.time.as_micros());
    Ok(Simulated { time_us, messages: outcome.messages })
}

/// Into how many pieces every chunk of the schedule is cut.
fn pieces(case: &Case) -> u32 {
    let each = case.bytes / case.running.max(1.0);
    let chunk = match case.protocol {
        Protocol::Ll | Protocol::Ll128 => 16.0 * 1024.0,
        Protocol::Simple => 512.0 * 1024.0,
    };
    match (case.algorithm, case.collective) {
        (Algorithm::Ring, Collective::Broadcast | Collective::Reduce) => {
            (each / chunk).ceil().clamp(1.0, 64.0) as u32
        }
        (Algorithm::Ring | Algorithm::Pat, _) => 1,
        _ => (each / chunk).ceil().clamp(1.0, 32.0) as u32,
    }
}

fn micros(us: f64) -> Picos {
    Picos((us * 1e6).round().max(0.0) as u64)
}

/// The links of one schedule that stands for all channels.
fn links(case: &Case, parameters: &Parameters, terms: Terms, found: &Layout) -> Result<Topology, Error> {
    let rates = Rates::of(case, parameters, terms);
    let rate = |gbps: f64| BytesPerSec((gbps * 1e9).max(1.0) as u64);
    let (nodes, devices) = (case.nodes as u32, case.devices as u32);
    let inside = rates.port(case);
    let across = if nodes > 1 { rates.network } else { inside };
    let half = |us: f64| micros(us / 2.0);
    let hop = half(if nodes > 1 { hop(case, parameters, terms) } else { 0.0 });
    let port = Link { bandwidth: rate(inside), latency: half(step(case, parameters)) };
    let nic = Link { bandwidth: rate(across), latency: hop };
    let ranks = found.schedule.ranks();
    let built = match (found.switches, nodes) {
        (false, 1) => Topology::switch(ranks, port),
        (false, _) => Topology::nodes(ranks, devices, 1, port, nic),
        (true, _) => switches(nodes, devices, port, nic),
    };
    built.map_err(|error| Error::Job(error.to_string()))
}

/// Nodes of GPUs around a switch, which is the rank after them; the switches joined by one that never blocks.
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
