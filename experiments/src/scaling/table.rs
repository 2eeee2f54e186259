//! The table of a scaling curve.

use allfold_cli::columns::columns;
use allfold_report::format::{above_whole, percent, rate, rounded_bytes, time};
use allfold_report::records::{MeasuredScale, RankMemory, SimulatedScale};

/// One line of a scaling table.
pub struct ScalingLine {
    ranks: u32,
    time_us: f64,
    exposed_us: f64,
    samples_per_s: f64,
    efficiency: f64,
    memory: Option<RankMemory>,
    device_memory: Option<u64>,
}

macro_rules! row {
    ($record:ident) => {
        impl From<&$record> for ScalingLine {
            fn from(point: &$record) -> ScalingLine {
                let &$record { time_us, exposed_us, samples_per_s, efficiency, .. } = point;
                let (ranks, memory, device_memory) = (point.setup.ranks, point.memory, point.device_memory);
                ScalingLine { ranks, time_us, exposed_us, samples_per_s, efficiency, memory, device_memory }
            }
        }
    };
}
row!(MeasuredScale);
row!(SimulatedScale);

impl ScalingLine {
    /// The bytes that a rank needs and those that its device has, if they are more than the device has.
    fn excess(&self) -> Option<(u64, u64)> {
        self.memory?.excess(self.device_memory)
    }
}

/// A line for every point of a curve, below the names of the columns. Points that need more memory than a device has are marked, and
/// a line below the table says how much.
pub fn table(points: impl IntoIterator<Item = impl Into<ScalingLine>>) -> String {
    let points: Vec<ScalingLine> = points.into_iter().map(Into::into).collect();
    let has_memory = points.iter().any(|point| point.memory.is_some());
    let excess = excess(&points);
    let mut names = vec!["ranks", "step", "exposed", "samples/s", "efficiency (%)"];
    names.extend(has_memory.then_some("most memory"));
    names.extend(excess.as_ref().map(|_| "fits"));
    let mut rows = vec![names.into_iter().map(String::from).collect()];
    rows.extend(points.iter().map(|row| {
        let mut cells = vec![
            row.ranks.to_string(),
            time(row.time_us),
            time(row.exposed_us),
            rate(row.samples_per_s),
            percent(row.efficiency).trim_end_matches(" %").into(),
        ];
        cells.extend(row.memory.map(|memory| rounded_bytes(memory.total())));
        let fits = if row.excess().is_some() { "no" } else { "yes" };
        cells.extend(excess.as_ref().map(|_| fits.to_string()));
        cells
    }));
    let above = above_whole(points.iter().map(|point| point.efficiency)).map(String::from);
    [Some(columns(&rows)), excess, above].into_iter().flatten().collect::<Vec<_>>().join("\n")
}

/// The line about points that need more memory than a device has, if there are any: their ranks, and the most that one needs.
fn excess(points: &[ScalingLine]) -> Option<String> {
    let (needed, has) = points.iter().filter_map(ScalingLine::excess).max()?;
    let ranks = points.iter().filter(|point| point.excess().is_some()).map(|point| point.ranks.to_string());
    Some(format!(
        "does not fit (ranks: {}): a rank needs up to {}, and its device has {}; the times ignore this limit, and have no efficiency",
        ranks.collect::<Vec<_>>().join(", "),
        rounded_bytes(needed),
        rounded_bytes(has)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_that_a_device_does_not_hold_are_marked() {
        let line = |ranks: u32, gb: u64, has: Option<u64>| ScalingLine {
            ranks,
            time_us: 1.0,
            exposed_us: 0.0,
            samples_per_s: 1.0,
            efficiency: 1.0,
            memory: Some(RankMemory { params: gb * 1_000_000_000, ..RankMemory::default() }),
            device_memory: has,
        };
        let has = Some(80_000_000_000);
        let text = table([line(1, 100, has), line(2, 90, has), line(4, 80, has)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("most memory  fits"), "{text}");
        let marks = lines[1..4].iter().map(|line| line.split_whitespace().last());
        assert_eq!(marks.collect::<Vec<_>>(), [Some("no"), Some("no"), Some("yes")]);
        assert_eq!(
            lines[4],
            "does not fit (ranks: 1, 2): a rank needs up to 93.132 GiB, and its device has 74.506 GiB; the times ignore this limit, and have no efficiency"
        );
        assert_eq!(lines.len(), 5);
        for fits in [table([line(1, 80, has)]), table([line(1, 100, None)])] {
            assert!(!fits.contains("fit"), "{fits}");
        }
    }
}
