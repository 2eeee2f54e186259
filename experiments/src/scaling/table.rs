//! The table of a scaling curve.

use crate::cli::columns::columns;
use allfold_report::records::{MeasuredScale, SimulatedScale};

/// One line of a scaling table.
pub struct ScalingLine {
    ranks: u32,
    time_us: f64,
    exposed_us: f64,
    samples_per_s: f64,
    efficiency: f64,
}

macro_rules! row {
    ($record:ident) => {
        impl From<&$record> for ScalingLine {
            fn from(point: &$record) -> ScalingLine {
                let &$record { time_us, exposed_us, samples_per_s, efficiency, .. } = point;
                ScalingLine { ranks: point.setup.ranks, time_us, exposed_us, samples_per_s, efficiency }
            }
        }
    };
}
row!(MeasuredScale);
row!(SimulatedScale);

/// A line for every point of a curve, below the names of the columns.
pub fn table(points: impl IntoIterator<Item = impl Into<ScalingLine>>) -> String {
    let names = ["ranks", "step (us)", "exposed (us)", "samples/s", "efficiency (%)"];
    let mut rows = vec![names.map(String::from).to_vec()];
    rows.extend(points.into_iter().map(|point| {
        let row: ScalingLine = point.into();
        vec![
            row.ranks.to_string(),
            format!("{:.1}", row.time_us),
            format!("{:.1}", row.exposed_us),
            format!("{:.0}", row.samples_per_s),
            format!("{:.1}", row.efficiency * 100.0),
        ]
    }));
    columns(&rows)
}
