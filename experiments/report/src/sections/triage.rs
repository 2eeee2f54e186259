//! The cause of a hang, and the last operations of the ranks around it.

use super::part::{Part, commands, distinct, head};
use crate::page::{Plot, ReportTable, Section};
use crate::plots::{Bar, DrawError, Timeline};
use crate::records::{Records, TriageFound, TriageSpan};
use serde_json::Value;

/// The most causes that are shown.
const CAUSES: usize = 3;

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let found = records.stamped::<TriageFound>();
    let Some((found, stamp)) = found.last() else { return Ok(None) };
    let mut spans = records.stamped::<TriageSpan>();
    spans.retain(|(_, of)| of == stamp);
    let spans: Vec<TriageSpan> = spans.into_iter().map(|(span, _)| span).collect();
    let said = |cause: &Value| cause["said"].as_str().unwrap_or_default().to_string();
    let undecided = if found.decided || found.causes.is_empty() { "" } else { "undecided: " };
    let answer = format!("{undecided}{}", found.causes.first().map_or(found.why.clone(), said));
    let mut text = vec![answer.clone()];
    for (key, words) in [("evidence", "For it"), ("against", "Against it")] {
        let all = found.causes.first().and_then(|cause| cause[key].as_array()).into_iter().flatten();
        text.extend(all.filter_map(Value::as_str).map(|why| format!("{words}: {why}.")));
    }
    let others = if found.decided { "Less likely" } else { "Or" };
    text.extend(found.causes.iter().take(CAUSES).skip(1).map(|cause| format!("{others}: {}.", said(cause))));
    text.extend(found.unknown.iter().map(|what| format!("Not known: {what}.")));
    let (plots, tables) = match &spans[..] {
        [] => Default::default(),
        spans => (vec![lanes(spans)?], vec![last(spans)]),
    };
    let (id, title, commands) = ("triage", "Who hung".into(), commands(std::iter::once(stamp)));
    let limits = vec![
        "The timeline has the named ranks, and one rank of those that got equally far (+6: so many more); what has not \
         ended reaches the right edge."
            .into(),
        "Clocks of hosts may differ: a rank's times count from an operation that ended on it and on the first rank shown."
            .into(),
    ];
    let section = Section { id, title, text, plots, tables, commands, folded: false };
    Ok(Some(Part { answer: Some(answer), facts: Vec::new(), limits, section }))
}

fn lanes(spans: &[TriageSpan]) -> Result<Plot, DrawError> {
    let rows = distinct(spans.iter().map(|span| span.lane.clone()));
    let mut kinds = distinct(spans.iter().map(|span| span.kind.clone()));
    kinds.sort_by_key(|kind| kind != "ended");
    let at = |all: &[String], name: &String| all.iter().position(|known| known == name).unwrap_or(0);
    let bar = |span: &TriageSpan| Bar {
        row: at(&rows, &span.lane),
        kind: at(&kinds, &span.kind),
        name: format!("{} {}", span.kind, span.name),
        start: span.start_ms,
        end: span.end_ms,
    };
    let short = |lane: &String| {
        let (rank, group) = lane.split_once(", ").unwrap_or((lane, ""));
        let rank = rank.split(' ').nth(1).unwrap_or(rank);
        format!("{rank} {}", group.chars().take(6).collect::<String>())
    };
    let timeline = Timeline {
        label: "The last operations of ranks".into(),
        unit: "time (ms)",
        bars: spans.iter().map(bar).collect(),
        rows: rows.iter().map(|lane| (lane.clone(), short(lane))).collect(),
        kinds,
    };
    let caption = "The last operations of ranks around the hang, by group";
    Ok(Plot::new(caption, None, timeline.draw()?))
}

/// What each lane did last.
fn last(spans: &[TriageSpan]) -> ReportTable {
    let lanes = distinct(spans.iter().map(|span| &span.lane));
    let row = |lane: &String| {
        let last = spans.iter().rev().find(|span| span.lane == *lane);
        let (kind, name) = last.map_or(Default::default(), |last| (last.kind.clone(), last.name.clone()));
        vec![lane.clone(), kind, name]
    };
    ReportTable {
        caption: "Recorded".into(),
        head: head(&["rank and group", "at the end", "operation"]),
        rows: lanes.into_iter().map(row).collect(),
        collapsed: false,
    }
}
