//! Draws predicted and measured times, one plot for each system.

use allfold_report::plots::{Axis, Curves, DrawError, Origin, Point, Series};
use allfold_report::records::Validated;

/// The most runs of one plot; each has a measured and a predicted curve.
const RUNS: usize = 3;

/// Time over size of a system's runs, as an SVG file; `None` where no run has three sizes.
///
/// # Errors
/// As [`Curves::draw`].
pub fn system(system: &str, rows: &[&Validated]) -> Result<Option<String>, DrawError> {
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
        Series {
            name: format!("{run}, {}", if origin == Origin::Gpu { "measured" } else { "predicted" }),
            origin,
            points,
        }
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
        x: Axis { label: "bytes", log: Some(2), format: size },
        y: Axis { label: "time (us)", log: Some(10), format: number },
        series,
        ideal: None,
    };
    let caption = format!("{system}: predicted from all other systems, and measured");
    Ok(Some(curves.draw()?.file(&caption)))
}

fn size(bytes: f64) -> String {
    match bytes {
        b if b >= f64::from(1 << 30) => format!("{}G", b / f64::from(1 << 30)),
        b if b >= f64::from(1 << 20) => format!("{}M", b / f64::from(1 << 20)),
        b if b >= 1024.0 => format!("{}K", b / 1024.0),
        b => format!("{b}"),
    }
}

fn number(value: f64) -> String {
    if value >= 10.0 { format!("{value:.0}") } else { format!("{value}") }
}
