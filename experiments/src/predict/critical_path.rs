//! Where the time of a simulated collective is spent, as lines below the table and as a timeline.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_collectives::time::Explanation;
use allfold_report::plots::{Bar, Timeline};
use allfold_sim::{Picos, Topology};
use std::collections::BTreeMap;

/// The most pairs of ranks and the most links that are listed.
const SHOWN: usize = 5;
/// The most ranks that a timeline has rows for; half as many links have rows.
const ROWS: u32 = 16;
/// The most bars that a legible SVG has.
const BARS: usize = 20_000;

/// Lines about the parts of the time, the ranks that cause it, and the busiest links.
pub fn lines(explanation: &Explanation, topology: &Topology) -> Vec<String> {
    let whole = explanation.time.as_micros().max(1e-9);
    let part = |(name, part): (&str, Picos)| {
        format!("{name} {:.2} us ({:.1} %)", part.as_micros(), 100.0 * part.as_micros() / whole)
    };
    let parts = explanation.parts.named().into_iter().filter(|(_, part)| part.0 > 0).map(part);
    let mut lines = vec![
        format!("# Where the time went, along {} messages that wait for each other:", explanation.path.len()),
        format!("#   {}", parts.collect::<Vec<_>>().join(", ")),
    ];
    lines.extend(explanation.pairs.iter().take(SHOWN).map(|(from, to, took)| {
        let of = 100.0 * took.as_micros() / whole;
        format!("#   waiting for rank {from} -> {to}: {:.2} us ({of:.1} %)", took.as_micros())
    }));
    lines.push(format!("# Busiest of {} links:", explanation.links.len()));
    lines.extend(explanation.links.iter().take(SHOWN).map(|link| {
        let name = topology.link_name(link.link);
        format!("#   {name}: {} bytes, {:.1} % of what it could carry", link.bytes.0, 100.0 * link.share)
    }));
    lines
}

/// The messages of the first ranks, and those on the busiest links, as an SVG file.
///
/// # Errors
/// There is nothing to draw, or too much.
pub fn timeline(explanation: &Explanation, topology: &Topology, caption: &str) -> CommandResult<String> {
    let ranks = topology.ranks().min(ROWS);
    let links: Vec<_> =
        explanation.links.iter().filter(|link| link.bytes.0 > 0).take(ROWS as usize / 2).collect();
    let row_of: BTreeMap<_, usize> =
        links.iter().zip(ranks as usize..).map(|(link, row)| (link.link, row)).collect();
    let mut rows: Vec<(String, String)> =
        (0..ranks).map(|rank| (format!("rank {rank} sends"), format!("r{rank}"))).collect();
    rows.extend(links.iter().map(|link| {
        let name = topology.link_name(link.link);
        (format!("{name}, {:.0} %", 100.0 * link.share), name)
    }));
    let critical: std::collections::BTreeSet<_> =
        explanation.path.iter().map(|hop| (hop.sent.from, hop.sent.to, hop.sent.round)).collect();
    let mut bars = Vec::new();
    for sent in &explanation.messages {
        let name = format!("{} -> {}, round {}, {} bytes", sent.from, sent.to, sent.round, sent.bytes.0);
        let on_path = critical.contains(&(sent.from, sent.to, sent.round));
        let mut bar = |row: usize, kind: usize, start: Picos, end: Picos| {
            bars.push(Bar { row, kind, name: name.clone(), start: start.as_micros(), end: end.as_micros() });
        };
        if sent.from.0 < ranks {
            bar(sent.from.index(), usize::from(on_path), sent.start, sent.left);
        }
        let mut path: Vec<allfold_sim::LinkId> = Vec::new();
        topology.route(sent.from, sent.to, &mut path);
        for row in path.iter().filter_map(|link| row_of.get(link)) {
            bar(*row, if on_path { 1 } else { 2 }, sent.start, sent.left);
        }
    }
    if bars.len() > BARS {
        return Err(CommandError::usage(format!(
            "--timeline would draw {} bars; take a smaller size or fewer ranks, {BARS} at most, or --trace",
            bars.len()
        )));
    }
    let timeline = Timeline {
        label: caption.into(),
        unit: "virtual time (us)",
        rows,
        kinds: vec!["message".into(), "on the critical path".into(), "link in use".into()],
        bars,
    };
    Ok(timeline.draw().map_err(CommandError::run)?.file(caption))
}
