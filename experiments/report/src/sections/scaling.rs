//! Scaling curves of training: measured where the ranks exist, simulated where they do not.

use super::part::{Part, commands, distinct, head};
use crate::format;
use crate::page::{Finding, Section, Table};
use crate::plots::{Axis, Curves, DrawError, Ideal, Origin, Point, Series};
use crate::records::{MeasuredScale, Records, SimulatedScale};

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let measured = records.stamped::<MeasuredScale>();
    let simulated = records.stamped::<SimulatedScale>();
    if measured.is_empty() && simulated.is_empty() {
        return Ok(None);
    }
    let stamps = measured.iter().map(|m| &m.1).chain(simulated.iter().map(|s| &s.1));
    let commands = commands(stamps);
    let measured: Vec<&MeasuredScale> = measured.iter().map(|(record, _)| record).collect();
    let simulated: Vec<&SimulatedScale> = simulated.iter().map(|(record, _)| record).collect();

    let largest = simulated.iter().filter(|s| s.ranks > 1).max_by_key(|s| s.ranks);
    let findings = largest.iter().map(|s| Finding {
        value: format::percent(s.efficiency),
        text: format!(
            "predicted efficiency of data-parallel training of the {} on {} ranks of {}",
            s.model, s.ranks, s.topology
        ),
        ok: None,
    });
    let findings = findings.collect();

    let throughput = Curves {
        label: "Training samples per second over ranks".into(),
        x: Axis { label: "ranks", log: Some(2), format: format::number },
        y: Axis { label: "samples/s", log: Some(10), format: format::number },
        series: curves(&measured, &simulated, |samples_per_s, _| samples_per_s),
        ideal: None,
    };
    let most = measured.iter().map(|m| m.ranks).chain(simulated.iter().map(|s| s.ranks)).max().unwrap_or(1);
    let efficiency = Curves {
        label: "Efficiency over ranks".into(),
        x: Axis { label: "ranks", log: Some(2), format: format::number },
        y: Axis { label: "efficiency", log: None, format: format::percent_axis },
        series: curves(&measured, &simulated, |_, efficiency| efficiency),
        ideal: Some(Ideal { name: "ideal".into(), points: vec![(1.0, 1.0), (f64::from(most), 1.0)] }),
    };
    let throughput = with_ideal(throughput);
    let figures = vec![
        ("Throughput of training over ranks, weak scaling".to_string(), throughput.draw()?),
        ("Efficiency: throughput over that of as many single ranks".to_string(), efficiency.draw()?),
    ];
    let mut tables = Vec::new();
    if !measured.is_empty() {
        let rows = measured.iter().map(|m| row!(m)).collect();
        tables.push(table("Measured on this machine, a thread per rank", rows));
    }
    if !simulated.is_empty() {
        let rows = simulated.iter().map(|s| row!(s)).collect();
        tables.push(table(
            "Simulated: sim carries real arithmetic on the virtual clock, modeled counts FLOPs and bytes",
            rows,
        ));
    }
    let section = Section {
        id: "scaling",
        title: "Scaling of training".into(),
        text: vec![
            "Weak scaling: every rank brings its own batch, and every step that is counted takes a whole one, so \
             that measured, carried and modeled steps are the same step. Measured points are this machine's, as far as it has \
             cores; simulated ones come from the same bucket plan and schedules on a virtual clock, with compute \
             from a device model. The device cpu_core is a plain core from its data sheet, not fitted to this machine: \
             how far its points are from the measured ones is how far to trust such a model."
                .into(),
        ],
        figures,
        tables,
        commands,
    };
    Ok(Some((findings, section)))
}

/// The row of a scaling point, measured or simulated: the tables are two, their columns alike.
macro_rules! row {
    ($point:expr) => {{
        let point = $point;
        vec![
            point.backend.clone(),
            point.model.clone(),
            point.topology.clone(),
            point.ranks.to_string(),
            point.batch.to_string(),
            format!("{:.1}", point.time_us),
            format!("{:.1}", point.time_error_us),
            format!("{:.1}", point.exposed_us),
            format!("{:.0}", point.samples_per_s),
            format::percent(point.efficiency),
        ]
    }};
}
use row;

fn table(caption: &str, rows: Vec<Vec<String>>) -> Table {
    let names = [
        "backend",
        "model",
        "machine",
        "ranks",
        "batch per rank",
        "step (us)",
        "std error (us)",
        "exposed (us)",
        "samples/s",
        "efficiency",
    ];
    Table { caption: caption.into(), head: head(&names), rows, folded: false }
}

fn curves(
    measured: &[&MeasuredScale],
    simulated: &[&SimulatedScale],
    value: impl Fn(f64, f64) -> f64,
) -> Vec<Series> {
    let machines = distinct(measured.iter().map(|m| (m.model.clone(), m.topology.clone())));
    let measured = machines.into_iter().map(|(model, topology)| {
        let of = measured.iter().filter(|m| m.model == model && m.topology == topology);
        let points = of.map(|m| {
            let y = value(m.samples_per_s, m.efficiency);
            Point { x: f64::from(m.ranks), y, error: y * m.time_error_us / m.time_us.max(1e-9) }
        });
        Series { name: format!("{model} on {topology}"), origin: Origin::Measured, points: points.collect() }
    });
    let machines =
        distinct(simulated.iter().map(|s| (s.model.clone(), s.topology.clone(), s.backend.clone())));
    let simulated = machines.into_iter().map(|(model, topology, backend)| {
        let of =
            simulated.iter().filter(|s| s.model == model && s.topology == topology && s.backend == backend);
        let points =
            of.map(|s| Point { x: f64::from(s.ranks), y: value(s.samples_per_s, s.efficiency), error: 0.0 });
        Series {
            name: format!("{model} on {topology}, {backend}"),
            origin: Origin::Simulated,
            points: points.collect(),
        }
    });
    measured.chain(simulated).collect()
}

/// Perfect scaling from the first point of the last curve.
fn with_ideal(mut curves: Curves) -> Curves {
    let Some(Series { name, points, .. }) = curves.series.last() else { return curves };
    if let (Some(first), Some(last)) = (points.first(), points.last()) {
        let end = first.y * last.x / first.x;
        curves.ideal = Some(Ideal {
            name: format!("ideal for {name}"),
            points: vec![(first.x, first.y), (last.x, end)],
        });
    }
    curves
}
