//! Collectives on machines that are not there: simulated, from a few to a thousand and more ranks.

use super::part::{Part, commands, distinct, head};
use crate::format;
use crate::page::{Headline, ReportTable, Section};
use crate::plots::{Axis, Curves, DrawError, Figure, Origin, Point, Series};
use crate::records::{Records, SimulatedCollective, SimulatorSpeed, TimeSpent};

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let all: Vec<_> = records.stamped::<SimulatedCollective>();
    if all.is_empty() {
        return Ok(None);
    }
    let rows: Vec<&SimulatedCollective> = all.iter().map(|(record, _)| record).collect();
    let mut figures = Vec::new();
    let kinds = rows.iter().map(|r| (r.call.collective.clone(), r.topology.clone(), r.call.bytes));
    for (collective, topology, bytes) in distinct(kinds) {
        let of: Vec<&SimulatedCollective> = rows
            .iter()
            .copied()
            .filter(|r| r.call.collective == collective && r.topology == topology && r.call.bytes == bytes)
            .collect();
        if let Some(figure) = figure(&of)? {
            figures
                .push((format!("{collective} of {} on {topology}, simulated", format::bytes(bytes)), figure));
        }
    }
    let beaten = rows.iter().filter(|r| r.bound_us.is_some_and(|bound| r.time_us < bound)).count();
    let most = rows.iter().map(|r| r.call.ranks).max().unwrap_or(0);
    let finding = Headline {
        value: format!("{most} ranks"),
        text: match beaten {
            0 => format!("simulated; none of {} times is below what bandwidth and latency allow", rows.len()),
            _ => format!(
                "simulated; {beaten} of {} times are BELOW what bandwidth or latency allow",
                rows.len()
            ),
        },
        ok: Some(beaten == 0),
    };
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
            "The schedules that the proofs were about, timed on a virtual clock of whole picoseconds, with links \
             shared by all that crosses them. No time may beat the bandwidth bound of the slowest cut or the latency \
             bound of the longest chain: that is asserted on every run, and the bound stands beside each time."
                .into(),
        ],
        figures,
        tables,
        commands: commands(all.iter().map(|(_, stamp)| stamp)),
    };
    Ok(Some((vec![finding], section)))
}

/// Bus bandwidth over ranks, where there are enough rank counts for a curve.
fn figure(rows: &[&SimulatedCollective]) -> Result<Option<Figure>, DrawError> {
    let series: Vec<Series> = distinct(rows.iter().map(|r| r.call.algorithm.clone()))
        .into_iter()
        .map(|algorithm| {
            let of = rows.iter().filter(|r| r.call.algorithm == algorithm && r.busbw_gbps > 0.0);
            let points = of.map(|r| Point { x: f64::from(r.call.ranks), y: r.busbw_gbps, error: 0.0 });
            Series { name: algorithm.clone(), origin: Origin::Simulated, points: points.collect() }
        })
        .filter(|series| series.points.len() > 2)
        .collect();
    if series.is_empty() {
        return Ok(None);
    }
    let label = rows.first().map_or(String::new(), |r| r.call.collective.clone());
    let curves = Curves {
        label: format!("Bus bandwidth of {label} over ranks, simulated"),
        x: Axis { label: "ranks", log: Some(2), format: format::number },
        y: Axis { label: "busbw (GB/s)", log: Some(10), format: format::number },
        series,
        ideal: None,
    };
    curves.draw().map(Some)
}

fn table(rows: &[&SimulatedCollective]) -> ReportTable {
    let row = |r: &&SimulatedCollective| {
        vec![
            r.call.collective.clone(),
            r.call.algorithm.clone(),
            r.topology.clone(),
            r.call.ranks.to_string(),
            r.call.bytes.to_string(),
            format!("{:.2}", r.time_us),
            r.bound_us.map(|bound| format!("{bound:.2}")).unwrap_or_default(),
            format!("{:.2}", r.algbw_gbps),
            format!("{:.2}", r.busbw_gbps),
            r.messages.map(|messages| messages.to_string()).unwrap_or_default(),
            r.engine.clone(),
        ]
    };
    let names = [
        "collective",
        "algorithm",
        "topology",
        "ranks",
        "size (B)",
        "virtual time (us)",
        "bound (us)",
        "algbw (GB/s)",
        "busbw (GB/s)",
        "messages",
        "engine",
    ];
    ReportTable {
        caption: "Simulated".into(),
        head: head(&names),
        rows: rows.iter().map(row).collect(),
        collapsed: true,
    }
}

/// Latency, bandwidth and the rest along the critical path, and whom it waited for.
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
