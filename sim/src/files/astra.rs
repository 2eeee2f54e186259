//! ASTRA-sim's network files (analytical backend).
//!
//! ```text
//! topology: [ Ring, Switch ]     a list entry is a dimension, the first one the innermost
//! npus_count: [ 8, 4 ]           8 x 4 ranks
//! bandwidth: [ 200.0, 50.0 ]     ASTRA-sim's documents say GB/s, but it computes with GiB/s
//! latency: [ 500.0, 2000.0 ]     ns
//! ```
//!
//! A network with one dimension becomes one of our built-in wirings. Several dimensions become a graph whose shortest paths are
//! those of ASTRA-sim: one dimension after the other.

mod yaml;

use super::xml::short;
use crate::topology::Edge;
use crate::{BytesPerSec, Error, Link, Picos, Result, Topology};
use yaml::{Entry, Place};

/// The four lists of a file.
struct File {
    topology: Entry<String>,
    npus_count: Entry<u32>,
    bandwidth: Entry<f64>,
    latency: Entry<f64>,
}

/// Limits for a network with several dimensions: its ranks, and its links.
const MOST_RANKS: u32 = 4096;
const MOST_LINKS: u64 = 1 << 21;

#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Ring,
    Full,
    Switch,
}

struct Dimension {
    shape: Shape,
    ranks: u32,
    link: Link,
}

/// Reads an ASTRA-sim network file as a topology of `ranks` ranks.
pub(super) fn topology(path: &str, text: &str, ranks: u32) -> Result<Topology> {
    let wrong =
        |at: Place, what: String| Error::Parse { path: path.into(), line: at.line, column: at.column, what };
    let file = read(text).map_err(|(at, what)| wrong(at, what))?;
    let count = file.topology.values.len();
    for (name, at, length) in [
        ("npus_count", file.npus_count.at, file.npus_count.values.len()),
        ("bandwidth", file.bandwidth.at, file.bandwidth.values.len()),
        ("latency", file.latency.at, file.latency.values.len()),
    ] {
        if length != count || count == 0 {
            return Err(wrong(
                at,
                format!("`{name}` has {length} entries and `topology` {count}; expected one per dimension"),
            ));
        }
    }
    let (dimensions, all) = dimensions(&file, &wrong)?;
    if all != ranks {
        let what = format!("this network joins {all} NPUs, not {ranks} ranks; use {all} ranks");
        return Err(wrong(file.npus_count.at, what));
    }
    let note = format!("{path}: bandwidths are taken as GiB/s, as ASTRA-sim computes them");
    let built = match &dimensions[..] {
        [Dimension { shape: Shape::Ring, link, .. }] => Topology::ring(ranks, *link)?,
        [Dimension { shape: Shape::Full, link, .. }] => Topology::mesh(ranks, *link)?,
        [Dimension { shape: Shape::Switch, link, .. }] => {
            // ASTRA-sim's latency is that of a hop; a path here has two hops, to the switch and from it.
            Topology::switch(ranks, *link)?
        }
        several => {
            let links: u64 = several
                .iter()
                .map(|d| u64::from(ranks) * if d.shape == Shape::Full { u64::from(d.ranks) } else { 2 })
                .sum();
            if ranks > MOST_RANKS || links > MOST_LINKS {
                let what = format!(
                    "{ranks} NPUs in several dimensions and {links} links; at most {MOST_RANKS} and {MOST_LINKS}"
                );
                return Err(wrong(file.npus_count.at, what));
            }
            grid(ranks, several)?
        }
    };
    Ok(built.renamed(path).with_notes(vec![note]))
}

fn read(text: &str) -> std::result::Result<File, (Place, String)> {
    let lists = yaml::lists(text, &["topology", "npus_count", "bandwidth", "latency"])?;
    Ok(File {
        topology: lists.get("topology", "a name", |name| Some(name.to_string()))?,
        npus_count: lists.get("npus_count", "a number of NPUs, 1 or more", |number| number.parse().ok())?,
        bandwidth: lists.get("bandwidth", "a number of GB/s", |number| number.parse().ok())?,
        latency: lists.get("latency", "a number of ns", |number| number.parse().ok())?,
    })
}

/// The dimensions of a network, and the number of ranks that they connect.
fn dimensions(file: &File, wrong: &dyn Fn(Place, String) -> Error) -> Result<(Vec<Dimension>, u32)> {
    let mut dimensions = Vec::new();
    let mut all = 1u32;
    let File { topology, npus_count, bandwidth, latency } = file;
    for (((shape, n), rate), latency) in
        topology.values.iter().zip(&npus_count.values).zip(&bandwidth.values).zip(&latency.values)
    {
        let at = match shape.is.as_str() {
            "Ring" => Shape::Ring,
            "FullyConnected" => Shape::Full,
            "Switch" => Shape::Switch,
            other => {
                let what =
                    format!("`{}` is no topology; expected Ring, FullyConnected or Switch", short(other));
                return Err(wrong(shape.at, what));
            }
        };
        if !(1e-6..=1e6).contains(&rate.is) {
            let what = format!("{} GB/s is not a possible bandwidth; expected 1e-6 to 1e6", rate.is);
            return Err(wrong(rate.at, what));
        }
        if !(0.0..=1e9).contains(&latency.is) {
            return Err(wrong(latency.at, format!("{} ns is no latency; expected 0 to 1e9", latency.is)));
        }
        let total = all.checked_mul(n.is).filter(|total| n.is > 0 && *total <= 1 << 24);
        all = total
            .ok_or_else(|| wrong(n.at, format!("{} NPUs; expected 1 or more, at most 2^24 in all", n.is)))?;
        const GIB: f64 = (1u64 << 30) as f64;
        let link = Link {
            bandwidth: BytesPerSec((rate.is * GIB).round() as u64),
            latency: Picos((latency.is * 1000.0).round() as u64),
        };
        dimensions.push(Dimension { shape: at, ranks: n.is, link });
    }
    Ok((dimensions, all))
}

/// A topology in which every dimension has links between the ranks that differ in that dimension only.
fn grid(ranks: u32, dimensions: &[Dimension]) -> Result<Topology> {
    let (mut switches, mut edges, mut stride) = (Vec::new(), Vec::new(), 1u32);
    for (number, dimension) in dimensions.iter().enumerate() {
        let (n, link) = (dimension.ranks, dimension.link);
        for rank in 0..ranks {
            let place = rank / stride % n;
            let base = rank - place * stride;
            let other = |at: u32| base + at % n * stride;
            match dimension.shape {
                _ if n == 1 => {}
                Shape::Ring => {
                    edges.push(Edge { from: rank, to: other(place + 1), link });
                    if n > 2 {
                        edges.push(Edge { from: rank, to: other(place + n - 1), link });
                    }
                }
                Shape::Full => {
                    edges.extend((1..n).map(|d| Edge { from: rank, to: other(place + d), link }));
                }
                Shape::Switch => {
                    if place == 0 {
                        switches.push(format!("switch{number}.{rank}"));
                        let switch = ranks + switches.len() as u32 - 1;
                        for at in 0..n {
                            edges.push(Edge { from: other(at), to: switch, link });
                            edges.push(Edge { from: switch, to: other(at), link });
                        }
                    }
                }
            }
        }
        stride *= n;
    }
    Topology::graph(ranks, &switches, edges)
}
