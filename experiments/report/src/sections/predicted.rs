//! Collectives on simulated machines, over ranks and over sizes.

use super::part::{Part, commands, distinct, fact};
use super::{names, predicted_curves};
use crate::format;
use crate::page::{Headline, Question, ReportTable, Section};
use crate::plots::DrawError;
use crate::records::{Records, SimulatedCollective, SimulatorSpeed, TimeSpent};

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let all: Vec<_> = records.stamped::<SimulatedCollective>();
    if all.is_empty() {
        return Ok(None);
    }
    let rows: Vec<&SimulatedCollective> = all.iter().map(|(record, _)| record).collect();
    let beaten = rows.iter().filter(|r| r.bound_us.is_some_and(|bound| r.time_us < bound)).count();
    let bounds = fact(
        Question::Trust,
        match beaten {
            0 => "no bound beaten".into(),
            _ => format!("{beaten} times below a bound"),
        },
        match beaten {
            0 => format!("none of {} simulated times is below what bandwidth and latency allow", rows.len()),
            _ => format!("of {} simulated times, which bandwidth or latency forbid", rows.len()),
        },
        Some(beaten == 0),
    );
    let fastest = fastest(&rows);
    let answer = fastest.as_ref().map(|(_, fastest)| format!("{} {}", fastest.value, fastest.text));
    let speeds = records.all::<SimulatorSpeed>();
    let mut tables = vec![table(&rows)];
    let spent = records.all::<TimeSpent>();
    if !spent.is_empty() {
        tables.insert(0, spent_table(&spent));
    }
    if !speeds.is_empty() {
        tables.push(speed_table(&speeds));
    }
    let section = Section {
        id: "predicted",
        title: "Predicted collectives".into(),
        text: vec![
            "The proved schedules, timed on a virtual clock of whole picoseconds, with links shared by all messages \
             that cross them. No time may beat the bandwidth bound of the slowest cut or the latency \
             bound of the longest chain: every run asserts this, and the tables show the bound of each time."
                .into(),
        ],
        plots: predicted_curves::plots(&rows)?,
        tables,
        commands: commands(all.iter().map(|(_, stamp)| stamp)),
        ..Section::default()
    };
    let limits = vec![
        "Simulated machines have no other jobs on their network, and their links have the rates of data sheets.".to_string(),
    ];
    Ok(Some(Part { answer, facts: std::iter::once(bounds).chain(fastest).collect(), limits, section }))
}

/// The fastest algorithm of the largest call on the most ranks.
fn fastest(rows: &[&SimulatedCollective]) -> Option<(Question, Headline)> {
    let most = rows.iter().max_by_key(|row| (row.call.ranks, row.call.bytes))?;
    let same = |row: &&&SimulatedCollective| {
        (&row.call.collective, row.call.ranks, row.call.bytes, &row.topology)
            == (&most.call.collective, most.call.ranks, most.call.bytes, &most.topology)
    };
    let of: Vec<&&SimulatedCollective> = rows.iter().filter(same).collect();
    let best = of.iter().min_by(|a, b| a.time_us.total_cmp(&b.time_us))?;
    let among = match distinct(of.iter().map(|row| &row.call.algorithm)).len() {
        1 => String::new(),
        several => format!(", the fastest of {several} algorithms"),
    };
    Some(fact(
        Question::Scale,
        format!("{} GB/s", format::number(best.busbw_gbps)),
        format!(
            "bus bandwidth of {} of {} on {} of {} by {}{among}, simulated",
            best.call.collective,
            format::bytes(best.call.bytes),
            format::counted(best.call.ranks as usize, "rank"),
            names::topology(&best.topology),
            best.call.algorithm
        ),
        None,
    ))
}

fn table(rows: &[&SimulatedCollective]) -> ReportTable {
    ReportTable::new(
        "Simulated",
        rows,
        &[
            ("collective", |r| r.call.collective.clone()),
            ("algorithm", |r| r.call.algorithm.clone()),
            ("topology", |r| r.topology.clone()),
            ("ranks", |r| r.call.ranks.to_string()),
            ("size", |r| format::bytes(r.call.bytes)),
            ("virtual time (us)", |r| format!("{:.2}", r.time_us)),
            ("bound (us)", |r| r.bound_us.map(|bound| format!("{bound:.2}")).unwrap_or_default()),
            ("algbw (GB/s)", |r| format!("{:.2}", r.algbw_gbps)),
            ("busbw (GB/s)", |r| format!("{:.2}", r.busbw_gbps)),
            ("messages", |r| r.messages.map(|messages| messages.to_string()).unwrap_or_default()),
            ("sharing", |r| r.sharing.clone()),
            ("engine", |r| r.engine.clone()),
        ],
    )
    .folded(true)
}

/// The share of the critical path's time that is spent in one of its parts.
fn part_of(s: &TimeSpent, part: &str) -> String {
    let us = s.parts.iter().find(|(name, _)| name == part).map(|(_, us)| *us);
    us.map(|us| share(s, us)).unwrap_or_default()
}

fn share(s: &TimeSpent, us: f64) -> String {
    format!("{:.1} %", 100.0 * us / s.time_us.max(1e-9))
}

/// The parts of the critical path (latency, bandwidth, ...), its longest wait, and the busiest link.
fn spent_table(spent: &[TimeSpent]) -> ReportTable {
    ReportTable::new(
        "Where the time went, along the critical path",
        spent,
        &[
            ("algorithm", |s| s.algorithm.clone()),
            ("topology", |s| s.topology.clone()),
            ("ranks", |s| s.ranks.to_string()),
            ("size", |s| format::bytes(s.bytes)),
            ("virtual time (us)", |s| format!("{:.2}", s.time_us)),
            ("launch", |s| part_of(s, "launch")),
            ("overhead", |s| part_of(s, "overhead")),
            ("bandwidth", |s| part_of(s, "bandwidth")),
            ("sharing", |s| part_of(s, "sharing")),
            ("latency", |s| part_of(s, "latency")),
            ("memory", |s| part_of(s, "memory")),
            ("waited for most", |s| {
                let wait = |(from, to, us)| format!("rank {from} to {to}: {}", share(s, us));
                s.longest_wait.map(wait).unwrap_or_default()
            }),
            ("busiest link", |s| {
                let busiest = |(name, of): &(String, f64)| format!("{name}: {:.0} %", 100.0 * of);
                s.busiest_link.as_ref().map(busiest).unwrap_or_default()
            }),
        ],
    )
}

fn speed_table(speeds: &[SimulatorSpeed]) -> ReportTable {
    ReportTable::new(
        "How fast the simulator itself was, measured on this machine",
        speeds,
        &[
            ("collective", |s| s.collective.clone()),
            ("algorithm", |s| s.algorithm.clone()),
            ("engine", |s| s.engine.clone()),
            ("ranks", |s| s.ranks.to_string()),
            ("messages", |s| s.messages.to_string()),
            ("real time (ms)", |s| format!("{:.2}", s.wall_s * 1e3)),
            ("million messages/s", |s| format!("{:.2}", s.messages_per_s / 1e6)),
        ],
    )
    .folded(true)
}
