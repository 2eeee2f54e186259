//! The cluster of a file of training rows: its name, its GPUs, and a GPU's share of the network.

use super::fields::Fields;
use super::words::{has, numbers, slug};
use crate::cluster::Cluster;

/// What the head of a file says of the machine.
pub(super) struct Machine {
    /// The name of the cluster. Files of one cluster have the same.
    pub system: String,
    /// The GPUs and their network.
    pub cluster: Cluster,
}

/// Names of products and of kinds of machines. A system that is called so is known only together with who measured on it.
const PRODUCTS: [&str; 11] = [
    "dgx",
    "hgx",
    "cluster",
    "host",
    "machine",
    "node",
    "server",
    "instance",
    "reference",
    "platform",
    "hopper",
];

/// Networks that are called by a name instead of a rate: Gb/s of one link.
const NAMED_LINKS: [(&str, f64); 11] = [
    ("omni-path", 100.0),
    ("omnipath", 100.0),
    ("edr", 100.0),
    ("hdr", 200.0),
    ("ndr", 400.0),
    ("xdr", 800.0),
    ("slingshot-11", 200.0),
    ("slingshot 11", 200.0),
    ("slingshot", 100.0),
    ("connectx-7", 400.0),
    ("connectx-6", 200.0),
];

/// Rates with units: the factor to GB/s.
const UNITS: [(&str, f64); 8] = [
    ("gb/s", 0.125),
    ("gbps", 0.125),
    ("gbit/s", 0.125),
    ("gbe", 0.125),
    ("gib/s", 1.074),
    ("tb/s", 125.0),
    ("tbps", 125.0),
    ("gigabit", 0.125),
];

impl Machine {
    /// Reads the head of a file.
    pub fn read(file: &Fields<'_>, source: &str) -> Result<Machine, String> {
        let (gpu, system) = (file.text("gpu")?, file.text("system")?);
        if gpu.is_empty() {
            return Err("`gpu` is not given; the name of a GPU, such as \"H100 80GB HBM3\", is right".into());
        }
        let node = match file.count("gpus_per_node")? {
            Some(node) => node,
            None => {
                if has(&gpu.to_lowercase(), &["gb200", "gb300", "gh200"]) {
                    4
                } else {
                    8
                }
            }
        };
        let described = file.text("interconnect")?;
        let network = described.to_ascii_lowercase();
        let mut cluster = Cluster::of(gpu, node, nic(described, node))?;
        cluster.omni_path = has(&network, &["omni-path", "omnipath", "omni path"]);
        cluster.limited_power |= has(&format!("{system} {gpu}").to_lowercase(), &["500 w", "500w"]);
        Ok(Machine { system: system_name(system, &cluster.gpu, source), cluster })
    }
}

/// The name of a cluster: the first words of its description, its GPU, and the source where these words name a product.
fn system_name(described: &str, gpu: &str, source: &str) -> String {
    let head = described.split(['(', ',', ';']).next().unwrap_or_default();
    let mut name = slug(head);
    let short = slug(gpu.split(' ').next().unwrap_or(gpu));
    if !name.contains(&short) {
        name = format!("{name}-{short}");
    }
    match name.is_empty() || has(&name, &PRODUCTS) {
        true => format!("{name}-{}", family(source)).trim_matches('-').to_string(),
        false => name,
    }
}

/// The publisher: the repository's name, else the first words.
fn family(source: &str) -> String {
    let repository = source.split_once("github.com/").and_then(|(_, path)| {
        let mut parts = path.split(['/', ' ', ')', ',']);
        parts.next()?;
        parts.next().map(|name| name.trim_end_matches(".git"))
    });
    match repository {
        Some(name) => slug(name),
        None => slug(&source.split_whitespace().take(4).collect::<Vec<_>>().join(" ")),
    }
}

/// A GPU's share of its node's network in bytes a second, from a description; `None` if none is stated.
fn nic(described: &str, node: u32) -> Option<f64> {
    let text = described.to_ascii_lowercase();
    let clauses = || {
        described
            .split([';', ','])
            .zip(text.split([';', ',']))
            .filter(|(_, clause)| !has(clause, &["not stated"]) || has(clause, &["omni"]))
    };
    clauses()
        .find_map(|(described, clause)| rate(described, clause, node))
        .or_else(|| clauses().find_map(|(_, clause)| named(clause, node)))
}

/// The share by the first stated rate of a clause that is no link inside of a node; `clause` is the clause in lower case.
fn rate(described: &str, clause: &str, node: u32) -> Option<f64> {
    let found = numbers(clause);
    for (at, (number, start, end)) in found.iter().enumerate() {
        let rest = clause.get(*end..)?.trim_start();
        let Some((unit, factor)) = UNITS.iter().find(|(unit, _)| rest.starts_with(unit)) else { continue };
        let before = clause.get(..*start)?;
        if has(before, &["nvlink", "nvswitch", "xgmi", "pcie", "hbm", "memory"]) {
            continue;
        }
        // GB/s and Gb/s differ by case alone; an "about" figure beside Gb/s never comes first.
        let bytes = described.get(*end..)?.trim_start().starts_with("GB/s");
        let gb = if bytes { *number } else { number * factor };
        let count = at.checked_sub(1).and_then(|before| found.get(before)).filter(|(.., end)| {
            let between = clause.get(*end..*start).unwrap_or_default().trim();
            ["x", "×", "*"].contains(&between)
        });
        let links = count.map_or(1.0, |(count, ..)| *count);
        let scope = rest.get(unit.len()..)?;
        let each = first_of(scope, &["gpu", "accelerator", "rank"]);
        let all = first_of(scope, &["node", "host", "server", "instance", "machine"]);
        let of_node = match (each, all) {
            (Some(each), Some(all)) => all < each,
            (None, None) => count.is_some() || gb >= 100.0 || gb <= 12.5,
            (each, _) => each.is_none(),
        };
        let share = if of_node { gb * links / f64::from(node) } else { gb * links };
        return Some(share * 1e9);
    }
    None
}

/// The share by links that are called by name: `4 Omni-Path links a node`, `4x HDR`; without a count one link a node.
fn named(clause: &str, node: u32) -> Option<f64> {
    let (at, gbit) = NAMED_LINKS.iter().find_map(|(name, gbit)| Some((clause.find(name)?, gbit)))?;
    let count = numbers(clause.get(..at)?)
        .last()
        .map(|(count, ..)| *count)
        .filter(|count| (1.0..=16.0).contains(count));
    let links = match count {
        Some(count) => count,
        None if *gbit >= 200.0 => f64::from(node),
        None => 4.0,
    };
    Some(links * gbit * 0.125e9 / f64::from(node))
}

/// Where the first of some words stands.
fn first_of(text: &str, words: &[&str]) -> Option<usize> {
    words.iter().filter_map(|word| text.find(word)).min()
}
