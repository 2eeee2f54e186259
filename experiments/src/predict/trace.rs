//! Chrome traces as files: the messages of a timed collective, or the activities of ranks on virtual time.

use crate::training::profile::RankProfile;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output;
use allfold_collectives::Activity;
use allfold_collectives::time::Sent;
use allfold_report::records::TimelineSpan;
use allfold_sim::{ChromeTrace, Picos, Stretch};
use std::io;
use std::path::Path;

/// Writes one row per rank and lane, a bar per message, on the sender's side.
///
/// # Errors
/// The file cannot be written.
pub fn messages(path: &Path, sent: &[Sent]) -> CommandResult {
    write(
        path,
        |lane| format!("lane {lane}"),
        |trace| {
            for message in sent {
                let name = format!("{} -> {}", message.from, message.to);
                let picos = message.arrived.0.saturating_sub(message.left.0);
                trace.stretch(&Stretch {
                    name: &name,
                    kind: "message",
                    process: message.from.0,
                    thread: message.lane,
                    start: message.start,
                    end: message.left,
                    args: &[("bytes", message.bytes.0), ("round", message.round), ("latency_ps", picos)],
                })?;
            }
            Ok(())
        },
    )
}

/// Writes one row per rank and stream, a bar per activity.
///
/// # Errors
/// The file cannot be written.
pub fn activities(path: &Path, activities: &[Activity]) -> CommandResult {
    write(path, stream, |trace| {
        for done in activities {
            let kind = if done.what == "compute" { "compute" } else { "communication" };
            trace.stretch(&Stretch {
                name: &done.what,
                kind,
                process: done.rank.0,
                thread: done.stream,
                start: done.start,
                end: done.end,
                args: &[],
            })?;
        }
        Ok(())
    })
}

/// Writes one row per rank and stream, a bar per part of a step.
///
/// # Errors
/// The file cannot be written.
pub fn spans(path: &Path, spans: &[TimelineSpan]) -> CommandResult {
    let picos = |us: f64| Picos((us * 1e6).max(0.0) as u64);
    write(path, stream, |trace| {
        for span in spans {
            let kind = if span.stream == "compute" { "compute" } else { "communication" };
            trace.stretch(&Stretch {
                name: &span.name,
                kind,
                process: span.rank,
                thread: u32::from(span.stream != "compute"),
                start: picos(span.start_us),
                end: picos(span.end_us),
                args: &[],
            })?;
        }
        Ok(())
    })
}

/// Writes a profile: per rank a row of steps, one of its work and waiting, and one of the passes of layers. The first of the ranks
/// is `first`.
///
/// # Errors
/// The file cannot be written.
pub fn profile(path: &Path, first: u32, ranks: &[RankProfile]) -> CommandResult {
    let all = || ranks.iter().flat_map(|rank| &rank.steps);
    let begin = all().map(|step| step.span.0).min().unwrap_or_default();
    let since = |time: Picos| Picos(time.0.saturating_sub(begin.0));
    write(
        path,
        |row| ["steps", "work and waiting", "layers"][row.min(2) as usize].into(),
        |trace| {
            for (process, rank) in (first..).zip(ranks) {
                for step in &rank.steps {
                    let micro = |number: usize| ("micro_batch", number as u64);
                    let mut row = |thread, name: &str, kind, (start, end), args: &[(&str, u64)]| {
                        let (start, end) = (since(start), since(end));
                        trace.stretch(&Stretch { name, kind, process, thread, start, end, args })
                    };
                    row(0, &format!("step {}", step.step), "step", step.span, &[])?;
                    for span in &step.spans {
                        let args: Vec<(&str, u64)> = span.micro.map(micro).into_iter().collect();
                        row(1, span.work.name(), "work", (span.start, span.end), &args)?;
                    }
                    for span in &step.layers {
                        row(2, rank.name(span.layer), span.work.name(), (span.start, span.end), &[])?;
                    }
                }
            }
            Ok(())
        },
    )
}

/// The name of a rank's stream.
fn stream(number: u32) -> String {
    match number {
        0 => "compute".into(),
        1 => "communication".into(),
        more => format!("communication {more}"),
    }
}

fn write(
    path: &Path,
    row: fn(u32) -> String,
    fill: impl FnOnce(&mut ChromeTrace<Vec<u8>>) -> io::Result<()>,
) -> CommandResult {
    let mut bytes = ChromeTrace::new(Vec::new(), row).map_err(CommandError::run)?;
    fill(&mut bytes).map_err(CommandError::run)?;
    let bytes = bytes.finish().map_err(CommandError::run)?;
    output::replace(path, &bytes)
}
