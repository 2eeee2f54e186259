//! Draws predicted and measured times, one plot for each system.

use crate::score::score;
use crate::tables::scored;
use allfold_report::format;
use allfold_report::plots::{Axis, Curves, DrawError, Origin, Point, Series};
use allfold_report::records::Validated;

/// The most runs of one plot; each has a measured and a predicted curve.
const RUNS: usize = 3;

/// Time over size of a system's runs, as an SVG file; `None` where no run has three sizes. The caption has the factors between
/// prediction and measurement over all rows of the system, the legend those of each drawn run. `how` says what the predictions are
/// made from.
///
/// # Errors
/// As [`Curves::draw`].
pub fn system(system: &str, how: &str, rows: &[&Validated]) -> Result<Option<String>, DrawError> {
    let mut runs: Vec<&str> = Vec::new();
    // Runs of one collective on equally many ranks and nodes would cover each other in the plot, so only the first is drawn.
    let mut shapes = Vec::new();
    for row in rows {
        let shape = (&*row.collective, row.ranks, row.nodes);
        if !runs.contains(&&*row.run) && !shapes.contains(&shape) {
            runs.push(&row.run);
            shapes.push(shape);
        }
    }
    let of = |run: &str, origin: Origin, time: fn(&Validated) -> f64| {
        let own = rows.iter().filter(|row| row.run == run);
        let mut points: Vec<Point> =
            own.map(|row| Point { x: row.bytes as f64, y: time(row), error: 0.0 }).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        let name = match origin {
            Origin::Simulated => {
                format!("{run}, predicted: {}", factors(rows.iter().filter(|row| row.run == run)))
            }
            Origin::Cpu | Origin::Gpu | Origin::Compared => format!("{run}, measured"),
        };
        Series { name, origin, points }
    };
    let series: Vec<Series> = runs
        .iter()
        .flat_map(|run| {
            [of(run, Origin::Gpu, |row| row.measured_us), of(run, Origin::Simulated, |row| row.predicted_us)]
        })
        .filter(|series| series.points.len() > 2)
        .take(2 * RUNS)
        .collect();
    if series.is_empty() {
        return Ok(None);
    }
    let curves = Curves {
        label: format!("{system}: time of a call over its size, predicted beside measured"),
        x: Axis { label: "size", log: Some(2), format: format::bytes_axis },
        y: Axis { label: "time (us)", log: Some(10), format: format::number },
        series,
        ideal: None,
    };
    let caption = format!("{system}: {how}, and measured; {}", factors(rows.iter()));
    Ok(Some(curves.draw()?.file(&caption)))
}

/// The median and the 90th percentile of the factors between prediction and measurement.
fn factors<'a>(rows: impl Iterator<Item = &'a &'a Validated>) -> String {
    let rows: Vec<_> = rows.map(|row| scored(row)).collect();
    score(rows.iter()).map_or("no factor".into(), |score| {
        format!("median factor {:.2}, 90th percentile {:.2}", score.by_rows.median, score.by_rows.p90)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(run: &str, bytes: u64, factor: f64) -> Validated {
        Validated {
            run: run.into(),
            system: "s".into(),
            nodes: 2,
            collective: if run == "a" { "all_reduce".into() } else { "all_gather".into() },
            ranks: 16,
            bytes,
            nccl_choice: "Ring/LL".into(),
            predictor: "simulated".into(),
            measured_us: 10.0,
            predicted_us: 10.0 * factor,
            error_factor: factor,
            fitted: false,
            interval: None,
        }
    }

    #[test]
    fn a_plot_says_by_what_factors_its_predictions_are_wrong() {
        let of = |run: &str, factors: [f64; 3]| {
            [16, 18, 20]
                .into_iter()
                .zip(factors)
                .map(|(shift, factor)| row(run, 1 << shift, factor))
                .collect()
        };
        let rows: [Vec<Validated>; 2] = [of("a", [1.1, 1.2, 1.5]), of("b", [2.0, 2.5, 3.0])];
        let text =
            system("s", "predicted from all other systems", &rows.iter().flatten().collect::<Vec<_>>())
                .unwrap()
                .unwrap();
        for said in [
            "s: predicted from all other systems, and measured; median factor 1.50, 90th percentile 3.00<",
            ">a, predicted: median factor 1.20, 90th percentile 1.50<",
            ">b, predicted: median factor 2.50, 90th percentile 3.00<",
            "64 KiB",
        ] {
            assert!(text.contains(said), "no `{said}` in {text}");
        }
    }
}
