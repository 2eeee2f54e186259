//! The table of a scaling curve.

use crate::cli::columns::columns;
use allfold_report::format::rounded_bytes;
use allfold_report::records::{MeasuredScale, SimulatedScale};

/// One line of a scaling table.
pub struct ScalingLine {
    ranks: u32,
    time_us: f64,
    exposed_us: f64,
    samples_per_s: f64,
    efficiency: f64,
    memory: Option<u64>,
}

macro_rules! row {
    ($record:ident) => {
        impl From<&$record> for ScalingLine {
            fn from(point: &$record) -> ScalingLine {
                let &$record { time_us, exposed_us, samples_per_s, efficiency, .. } = point;
                let (ranks, memory) = (point.setup.ranks, point.memory.map(|memory| memory.total()));
                ScalingLine { ranks, time_us, exposed_us, samples_per_s, efficiency, memory }
            }
        }
    };
}
row!(MeasuredScale);
row!(SimulatedScale);

/// A line for every point of a curve, below the names of the columns.
pub fn table(points: impl IntoIterator<Item = impl Into<ScalingLine>>) -> String {
    let points: Vec<ScalingLine> = points.into_iter().map(Into::into).collect();
    let has_memory = points.iter().any(|point| point.memory.is_some());
    let mut names = vec!["ranks", "step (us)", "exposed (us)", "samples/s", "efficiency (%)"];
    names.extend(has_memory.then_some("most memory"));
    let mut rows = vec![names.into_iter().map(String::from).collect()];
    rows.extend(points.into_iter().map(|row| {
        let mut cells = vec![
            row.ranks.to_string(),
            format!("{:.1}", row.time_us),
            format!("{:.1}", row.exposed_us),
            format!("{:.0}", row.samples_per_s),
            format!("{:.1}", row.efficiency * 100.0),
        ];
        cells.extend(row.memory.map(rounded_bytes));
        cells
    }));
    columns(&rows)
}
