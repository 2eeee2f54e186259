//! Scaling curves of training: measured where the ranks exist, simulated where they do not.

use super::part::{Part, commands, distinct, head};
use crate::format;
use crate::page::{Headline, ReportTable, Section};
use crate::plots::{Axis, Curves, DrawError, Ideal, Origin, Point, Series};
use crate::records::{MeasuredScale, Records, Setup, SimulatedScale};

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

    let largest = simulated.iter().filter(|s| s.setup.ranks > 1).max_by_key(|s| s.setup.ranks);
    let findings = largest.iter().map(|s| Headline {
        value: format::percent(s.efficiency),
        text: format!(
            "predicted efficiency of data-parallel training of the {} on {} ranks of {}",
            s.setup.model, s.setup.ranks, s.topology
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
    let setups = measured.iter().map(|m| &m.setup).chain(simulated.iter().map(|s| &s.setup));
    let most = setups.map(|setup| setup.ranks).max().unwrap_or(1);
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
        tables.push(table("Measured on this machine; steps that warm up are not counted", rows));
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
            point.setup.backend.clone(),
            point.setup.device.clone(),
            point.setup.model.clone(),
            point.setup.strategy.clone(),
            point.topology.clone(),
            point.setup.ranks.to_string(),
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

fn table(caption: &str, rows: Vec<Vec<String>>) -> ReportTable {
    let names = [
        "backend",
        "device",
        "model",
        "strategy",
        "machine",
        "ranks",
        "batch per rank",
        "step (us)",
        "std error (us)",
        "exposed (us)",
        "samples/s",
        "efficiency",
    ];
    ReportTable { caption: caption.into(), head: head(&names), rows, collapsed: false }
}

/// A curve for each kind of run on each machine.
fn curves(
    measured: &[&MeasuredScale],
    simulated: &[&SimulatedScale],
    value: impl Fn(f64, f64) -> f64,
) -> Vec<Series> {
    let key = |setup: &Setup, topology: &str| (setup.kind().map(String::from), topology.to_string());
    let kinds = distinct(measured.iter().map(|m| key(&m.setup, &m.topology)));
    let measured = kinds.into_iter().map(|kind| {
        let of = measured.iter().filter(|m| key(&m.setup, &m.topology) == kind);
        let points = of.map(|m| {
            let y = value(m.samples_per_s, m.efficiency);
            Point { x: f64::from(m.setup.ranks), y, error: y * m.time_error_us / m.time_us.max(1e-9) }
        });
        let ([backend, device, model, strategy], topology) = &kind;
        Series {
            name: format!("{model}, {strategy} on {topology}, {backend} on {device}"),
            origin: Origin::Measured,
            points: points.collect(),
        }
    });
    let kinds = distinct(simulated.iter().map(|s| key(&s.setup, &s.topology)));
    let simulated = kinds.into_iter().map(|kind| {
        let of = simulated.iter().filter(|s| key(&s.setup, &s.topology) == kind);
        let point = |s: &&SimulatedScale| Point {
            x: f64::from(s.setup.ranks),
            y: value(s.samples_per_s, s.efficiency),
            error: 0.0,
        };
        let ([backend, _, model, strategy], topology) = &kind;
        Series {
            name: format!("{model}, {strategy} on {topology}, {backend}"),
            origin: Origin::Simulated,
            points: of.map(point).collect(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_another_strategy_or_device_are_another_curve() {
        let point = |device: &str, strategy: &str, ranks: u32| MeasuredScale {
            setup: Setup {
                backend: "threads".into(),
                device: device.into(),
                model: "cnn".into(),
                strategy: strategy.into(),
                ranks,
                mesh: Setup::data_parallel(ranks),
            },
            batch: 8,
            topology: "this machine".into(),
            time_us: 1.0,
            time_error_us: 0.0,
            exposed_us: 0.0,
            samples_per_s: 8.0,
            efficiency: 1.0,
            engines: Vec::new(),
        };
        let points = [("cpu", "ddp"), ("cpu", "zero1"), ("H100", "ddp")]
            .map(|(device, strategy)| [1, 2].map(|ranks| point(device, strategy, ranks)));
        let points: Vec<&MeasuredScale> = points.iter().flatten().collect();
        let curves = curves(&points, &[], |samples_per_s, _| samples_per_s);
        assert_eq!(curves.iter().map(|curve| curve.points.len()).collect::<Vec<_>>(), [2, 2, 2]);
        assert!(curves[2].name.contains("H100") && curves[1].name.contains("zero1"));
    }
}
