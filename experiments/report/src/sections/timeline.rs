//! One step of training on the virtual clock: which communication hides behind the backward pass, and which does not.

use super::compare::longest_wait;
use super::part::{Part, commands, distinct};
use crate::page::{Plot, ReportTable, Section};
use crate::plots::{Bar, DrawError, Timeline};
use crate::records::{Records, TimelineSpan};

/// The number of ranks that are drawn.
const RANKS: usize = 4;

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let mut all = records.stamped::<TimelineSpan>();
    all.retain(|(span, _)| span.strategy.is_none());
    if all.is_empty() {
        return Ok(None);
    }
    let spans: Vec<&TimelineSpan> = all.iter().map(|(span, _)| span).collect();
    let mut ranks = distinct(spans.iter().map(|span| span.rank));
    ranks.sort_unstable();
    ranks.truncate(RANKS);
    let mut rows: Vec<(u32, String)> = distinct(spans.iter().map(|span| (span.rank, span.stream.clone())));
    rows.retain(|(rank, _)| ranks.contains(rank));
    rows.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| b.1.cmp(&a.1)).reverse());
    rows.reverse();
    let kinds = distinct(spans.iter().map(|span| kind(&span.name)));
    let bars = spans.iter().filter_map(|span| {
        let row = rows.iter().position(|(rank, stream)| *rank == span.rank && *stream == span.stream)?;
        let kind = kinds.iter().position(|name| *name == kind(&span.name))?;
        Some(Bar { row, kind, name: span.name.clone(), start: span.start_us, end: span.end_us })
    });
    let short = |stream: &str| stream.chars().take(4).collect::<String>();
    let timeline = Timeline {
        label: "Timeline of one training step, simulated".into(),
        unit: "virtual time (us)",
        bars: bars.collect(),
        rows: rows
            .iter()
            .map(|(rank, s)| (format!("rank {rank} {s}"), format!("{rank} {}", short(s))))
            .collect(),
        kinds,
    };
    let drawn = spans.iter().filter(|span| ranks.contains(&span.rank));
    let table = ReportTable::new(
        "Simulated",
        drawn,
        &[
            ("rank", |span| span.rank.to_string()),
            ("stream", |span| span.stream.clone()),
            ("what", |span| span.name.clone()),
            ("start (us)", |span| format!("{:.2}", span.start_us)),
            ("end (us)", |span| format!("{:.2}", span.end_us)),
            ("length (us)", |span| format!("{:.2}", span.end_us - span.start_us)),
        ],
    );
    let section = Section {
        id: "timeline",
        title: "Timeline of one step".into(),
        text: vec![
            "Each rank computes on one timeline and communicates on another. A bucket of gradients is sent as soon as it \
             is full; what is still under way when the backward pass ends is exposed."
                .into(),
        ],
        plots: vec![Plot::new(
            "One step of data-parallel training, simulated",
            hidden(&spans),
            timeline.draw()?,
        )],
        tables: vec![table.folded(true)],
        commands: commands(all.iter().map(|(_, stamp)| stamp)),
        ..Section::default()
    };
    Ok(Some(Part { answer: None, facts: Vec::new(), limits: Vec::new(), section }))
}

/// How long the ranks wait, and how long communication takes and how much of it is exposed on the rank that waits the longest.
fn hidden(spans: &[&TimelineSpan]) -> Option<String> {
    let length = |span: &&TimelineSpan| span.end_us - span.start_us;
    let of = |rank: u32, name: &str, stream: &str| -> f64 {
        let of = spans.iter().filter(|span| span.rank == rank && span.stream == stream);
        of.filter(|span| name.is_empty() || kind(&span.name) == name).map(length).sum()
    };
    let ranks = distinct(spans.iter().map(|span| span.rank));
    let waits = |rank: &u32| of(*rank, "exposed", "compute") + of(*rank, "waiting", "compute");
    let share = |rank: &u32| waits(rank) / of(*rank, "", "compute").max(1e-9);
    let rank = ranks.iter().copied().max_by(|a, b| share(a).total_cmp(&share(b)))?;
    let (exposed, sent) = (waits(&rank), of(rank, "", "communication"));
    if sent <= 0.0 || of(rank, "", "compute") <= 0.0 {
        return None;
    }
    Some(format!(
        "{}; operations of communication take {sent:.1} us in all on rank {rank}, of which {exposed:.1} us are exposed",
        longest_wait(rank, ranks.iter().map(share))?
    ))
}

/// The kind of a bar, which decides its colour: its name up to the first digit, `[` or `(`.
fn kind(name: &str) -> String {
    name.split(|c: char| c.is_ascii_digit() || c == '[' || c == '(').next().unwrap_or(name).trim().into()
}
