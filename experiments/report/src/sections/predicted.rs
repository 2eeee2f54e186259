//! Collectives on simulated machines, over ranks and over sizes.

use super::part::{Part, commands, distinct, fact, head};
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
        folded: false,
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
    let row = |r: &&SimulatedCollective| {
        vec![
            r.call.collective.clone(),
            r.call.algorithm.clone(),
            r.topology.clone(),
            r.call.ranks.to_string(),
            format::bytes(r.call.bytes),
            format!("{:.2}", r.time_us),
            r.bound_us.map(|bound| format!("{bound:.2}")).unwrap_or_default(),
            format!("{:.2}", r.algbw_gbps),
            format!("{:.2}", r.busbw_gbps),
            r.messages.map(|messages| messages.to_string()).unwrap_or_default(),
            r.sharing.clone(),
            r.engine.clone(),
        ]
    };
    let names = [
        "collective",
        "algorithm",
        "topology",
        "ranks",
        "size",
        "virtual time (us)",
        "bound (us)",
        "algbw (GB/s)",
        "busbw (GB/s)",
        "messages",
        "sharing",
        "engine",
    ];
    ReportTable {
        caption: "Simulated".into(),
        head: head(&names),
        rows: rows.iter().map(row).collect(),
        collapsed: true,
    }
}

/// The parts of the critical path (latency, bandwidth, ...), its longest wait, and the busiest link.
fn spent_table(spent: &[TimeSpent]) -> ReportTable {
    const PARTS: [&str; 6] = ["launch", "overhead", "bandwidth", "sharing", "latency", "memory"];
    let row = |s: &TimeSpent| {
        let share = |us: f64| format!("{:.1} %", 100.0 * us / s.time_us.max(1e-9));
        let part = |name: &&str| s.parts.iter().find(|(own, _)| own == name).map(|(_, us)| share(*us));
        let mut cells = vec![
            s.algorithm.clone(),
            s.topology.clone(),
            s.ranks.to_string(),
            format::bytes(s.bytes),
            format!("{:.2}", s.time_us),
        ];
        cells.extend(PARTS.iter().map(|name| part(name).unwrap_or_default()));
        cells.push(
            s.longest_wait
                .map_or(String::new(), |(from, to, us)| format!("rank {from} to {to}: {}", share(us))),
        );
        let busiest = |(name, of): &(String, f64)| format!("{name}: {:.0} %", 100.0 * of);
        cells.push(s.busiest_link.as_ref().map_or(String::new(), busiest));
        cells
    };
    let names = ["algorithm", "topology", "ranks", "size", "virtual time (us)"];
    let last = ["waited for most", "busiest link"];
    ReportTable {
        caption: "Where the time went, along the critical path".into(),
        head: head(&[&names[..], &PARTS[..], &last[..]].concat()),
        rows: spent.iter().map(row).collect(),
        collapsed: false,
    }
}

fn speed_table(speeds: &[SimulatorSpeed]) -> ReportTable {
    let row = |s: &SimulatorSpeed| {
        vec![
            s.collective.clone(),
            s.algorithm.clone(),
            s.engine.clone(),
            s.ranks.to_string(),
            s.messages.to_string(),
            format!("{:.2}", s.wall_s * 1e3),
            format!("{:.2}", s.messages_per_s / 1e6),
        ]
    };
    ReportTable {
        caption: "How fast the simulator itself was, measured on this machine".into(),
        head: head(&[
            "collective",
            "algorithm",
            "engine",
            "ranks",
            "messages",
            "real time (ms)",
            "million messages/s",
        ]),
        rows: speeds.iter().map(row).collect(),
        collapsed: true,
    }
}
