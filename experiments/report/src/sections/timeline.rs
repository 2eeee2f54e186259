//! One step of training on the virtual clock: which communication hides behind the backward pass, and which does not.

use super::part::{Part, commands, distinct, head};
use crate::page::{ReportTable, Section};
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
    let row = |span: &&TimelineSpan| {
        let (start, end) = (span.start_us, span.end_us);
        let times = [start, end, end - start].map(|us| format!("{us:.2}"));
        [vec![span.rank.to_string(), span.stream.clone(), span.name.clone()], times.to_vec()].concat()
    };
    let table = ReportTable {
        caption: "Simulated".into(),
        head: head(&["rank", "stream", "what", "start (us)", "end (us)", "length (us)"]),
        rows: spans.iter().filter(|span| ranks.contains(&span.rank)).map(row).collect(),
        collapsed: true,
    };
    let section = Section {
        id: "timeline",
        title: "Timeline of one step".into(),
        text: vec![
            "Each rank computes on one timeline and communicates on another. A bucket of gradients is sent as soon as it \
             is full; what is still under way when the backward pass ends is exposed."
                .into(),
        ],
        figures: vec![("One step of data-parallel training, simulated".into(), timeline.draw()?)],
        tables: vec![table],
        commands: commands(all.iter().map(|(_, stamp)| stamp)),
    };
    Ok(Some((Vec::new(), section)))
}

/// What a bar's colour stands for: its name without a number.
fn kind(name: &str) -> String {
    name.split(|c: char| c.is_ascii_digit() || c == '[' || c == '(').next().unwrap_or(name).trim().into()
}
