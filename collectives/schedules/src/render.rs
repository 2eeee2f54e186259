//! A schedule as text: which rank sends what to which rank in each round, the cost, and the order of reductions.

use crate::check::{Cost, Proof, walk};
use crate::schedule::{Combine, Rank, Region, Schedule, Span, Step};
use std::fmt::Write;

/// The greatest number of characters of a line in which messages are listed one by one.
const WIDTH: usize = 110;
/// The greatest number of rounds in a drawing.
const ROUNDS: usize = 64;
/// The greatest number of messages of one round in a drawing.
const MESSAGES: usize = 64;

/// A round of a drawing: its number, what some ranks send, and the number of further messages.
struct Line {
    round: u64,
    cells: Vec<(Rank, String)>,
    more: usize,
}

/// Draws the rounds of a schedule. Up to eight ranks have a column each; for more ranks, messages are listed one by one. A long
/// schedule is cut off with a note.
///
/// ```
/// use allfold_schedules::{algorithms::RingAllReduce, render};
/// assert_eq!(render::rounds(&RingAllReduce(2)), "\
/// round  rank 0    rank 1
///     0  0 +> 1    1 +> 0
///     1  1 -> 1    0 -> 0
///
/// c +> r: chunk c is reduced into rank r's; c -> r: it replaces rank r's.
/// ");
/// ```
pub fn rounds(schedule: &(impl Schedule + ?Sized)) -> String {
    let mut lines: Vec<Line> = Vec::new();
    let drawn = walk(schedule, |round, acting| {
        if lines.len() == ROUNDS {
            return Err(schedule.rounds() - round);
        }
        let sends = |(rank, step): &(Rank, Step)| Some((*rank, cell(schedule, *rank, round, step)?));
        let cells = acting.iter().filter_map(sends).take(MESSAGES).collect();
        let senders = acting.iter().filter(|(_, step)| step.send.is_some()).count();
        lines.push(Line { round, cells, more: senders.saturating_sub(MESSAGES) });
        Ok(())
    });
    let mut text = if schedule.ranks() <= 8 { columns(schedule.ranks(), &lines) } else { list(&lines) };
    if let Err(hidden) = drawn {
        let _ = writeln!(text, "  ...  and {hidden} rounds more");
    }
    let elsewhere = if text.contains('[') {
        "r[x]: chunk c goes to x on rank r; s2:c is chunk c of scratch copy 2.\n"
    } else {
        ""
    };
    text + "\nc +> r: chunk c is reduced into rank r's; c -> r: it replaces rank r's.\n" + elsewhere
}

/// The text for what a rank sends, if it sends: the chunks, how they are combined, and the receiver.
fn cell(schedule: &(impl Schedule + ?Sized), rank: Rank, round: u64, step: &Step) -> Option<String> {
    let (to, sent) = step.send?;
    let recv = if to.0 < schedule.ranks() { schedule.step(to, round).recv } else { None };
    let (into, arrow) = match recv {
        Some((_, into, Combine::Reduce)) => (into, "+>"),
        Some((_, into, Combine::Copy)) => (into, "->"),
        None => (sent, "-?"),
    };
    let elsewhere = (into.region, into.first_chunk) != (sent.region, sent.first_chunk) || to == rank;
    let at = if elsewhere { format!("[{}]", span(into)) } else { String::new() };
    Some(format!("{} {arrow} {to}{at}", span(sent)))
}

/// A span as text: `3`, `0-3`, in scratch copy 2 `s2:0-3`, in segment 1 `0-3/1`.
fn span(span: Span) -> String {
    let number = match span.region {
        Region::Data => String::new(),
        Region::Scratch(number) => format!("s{number}:"),
    };
    let last =
        if span.chunks > 1 { format!("-{}", span.first_chunk + span.chunks - 1) } else { String::new() };
    let segment = if span.segment > 0 { format!("/{}", span.segment) } else { String::new() };
    format!("{number}{}{last}{segment}", span.first_chunk)
}

fn columns(ranks: u32, lines: &[Line]) -> String {
    let cells = lines.iter().flat_map(|line| &line.cells).map(|(_, cell)| cell.len());
    let width = cells.max().unwrap_or(0).max("rank 0".len()) + 4;
    let row = |head: String, cells: &mut dyn Iterator<Item = String>| {
        let line = cells.fold(format!("{head:>5}  "), |line, cell| line + &format!("{cell:<width$}"));
        line.trim_end().to_string() + "\n"
    };
    let head = row("round".into(), &mut (0..ranks).map(|rank| format!("rank {rank}")));
    lines.iter().fold(head, |text, Line { round, cells, .. }| {
        let cell =
            |rank| cells.iter().find(|(r, _)| r.0 == rank).map_or(String::new(), |(_, cell)| cell.clone());
        text + &row(round.to_string(), &mut (0..ranks).map(cell))
    })
}

fn list(lines: &[Line]) -> String {
    let mut text = String::from("round  rank: what it sends\n");
    for Line { round, cells, more } in lines {
        let rest = (*more > 0).then(|| format!("and {more} ranks more"));
        let items = cells.iter().map(|(rank, cell)| format!("{rank}: {cell}")).chain(rest);
        let mut line = format!("{round:>5}");
        for item in items {
            if line.len() + 2 + item.len() > WIDTH {
                text += &(line + "\n");
                line = " ".repeat(5);
            }
            line += &format!("  {item}");
        }
        text += &(line + "\n");
    }
    text
}

/// The cost of a schedule in one line, counted from its steps.
///
/// ```
/// use allfold_schedules::{algorithms::RingAllReduce, render};
/// assert_eq!(
///     render::cost(&RingAllReduce(8)),
///     "8 ranks, 8 chunks: 14 rounds, 112 messages; a rank sends 1.750 and reduces 0.875 times the data",
/// );
/// ```
pub fn cost(schedule: &(impl Schedule + ?Sized)) -> String {
    let cost = Cost::of(schedule);
    let (ranks, chunks) = (schedule.ranks(), schedule.chunks());
    let mut line = format!(
        "{ranks} rank{}, {chunks} chunk{}: {} rounds, {} messages; a rank sends {:.3}",
        if ranks == 1 { "" } else { "s" },
        if chunks == 1 { "" } else { "s" },
        cost.rounds,
        cost.messages,
        cost.sent
    );
    if cost.received > cost.sent {
        let _ = write!(line, ", receives up to {:.3}", cost.received);
    }
    if cost.moved > 0.0 {
        let _ = write!(line, ", copies {:.3}", cost.moved);
    }
    if cost.reduced > 0.0 {
        let _ = write!(line, " and reduces {:.3}", cost.reduced);
    }
    line + " times the data"
}

/// The order of the reductions, with the tree as a formula if there is a single tree, and in a second line the hash of the result.
pub fn order(proof: &Proof) -> String {
    let (Some(order), Some(hash)) = (proof.order(), proof.hash()) else {
        return "nothing is reduced".into();
    };
    let tree = proof.tree().map_or("it depends on the chunk".into(), |tree| proof.forest().formula(tree));
    format!("{order} order: {tree}\ntree {hash}")
}
