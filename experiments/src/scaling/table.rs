//! The table of a scaling curve.

use allfold_cli::columns::columns;
use allfold_report::format::{above_whole, percent, rate, rounded_bytes, time};
use allfold_report::records::ScalePoint;

/// A line for every point of a curve, below the names of the columns. Points that need more memory than a device has are marked, and
/// a line below the table says how much.
pub fn table<const MEASURED: bool>(points: &[ScalePoint<MEASURED>]) -> String {
    let has_memory = points.iter().any(|point| point.memory.is_some());
    let excess = excess(points);
    let mut names = vec!["ranks", "step", "exposed", "samples/s", "efficiency (%)"];
    names.extend(has_memory.then_some("most memory"));
    names.extend(excess.as_ref().map(|_| "fits"));
    let mut rows = vec![names.into_iter().map(String::from).collect()];
    rows.extend(points.iter().map(|row| {
        let mut cells = vec![
            row.setup.ranks.to_string(),
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
fn excess<const MEASURED: bool>(points: &[ScalePoint<MEASURED>]) -> Option<String> {
    let (needed, has) = points.iter().filter_map(ScalePoint::excess).max()?;
    let ranks =
        points.iter().filter(|point| point.excess().is_some()).map(|point| point.setup.ranks.to_string());
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
    use allfold_report::records::{RankMemory, Setup};

    #[test]
    fn points_that_a_device_does_not_hold_are_marked() {
        let line = |ranks: u32, gb: u64, has: Option<u64>| ScalePoint::<false> {
            setup: Setup { ranks, ..Setup::default() },
            time_us: 1.0,
            samples_per_s: 1.0,
            efficiency: 1.0,
            memory: Some(RankMemory { params: gb * 1_000_000_000, ..RankMemory::default() }),
            device_memory: has,
            ..ScalePoint::default()
        };
        let has = Some(80_000_000_000);
        let text = table(&[line(1, 100, has), line(2, 90, has), line(4, 80, has)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("most memory  fits"), "{text}");
        let marks = lines[1..4].iter().map(|line| line.split_whitespace().last());
        assert_eq!(marks.collect::<Vec<_>>(), [Some("no"), Some("no"), Some("yes")]);
        assert_eq!(
            lines[4],
            "does not fit (ranks: 1, 2): a rank needs up to 93.132 GiB, and its device has 74.506 GiB; the times ignore this limit, and have no efficiency"
        );
        assert_eq!(lines.len(), 5);
        for fits in [table(&[line(1, 80, has)]), table(&[line(1, 100, None)])] {
            assert!(!fits.contains("fit"), "{fits}");
        }
    }
}
