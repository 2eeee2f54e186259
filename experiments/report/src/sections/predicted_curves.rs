//! The plots of simulated collectives: bus bandwidth over ranks, and over sizes.
//!
//! ```text
//! records of one collective and topology  ->  over ranks, one plot for each size
//!                                         ->  over sizes, one plot for each number of ranks
//! ```
//!
//! NCCL's choice changes with the size, so that all of NCCL's records are one curve. The line of the bound is the highest busbw
//! that link bandwidth and latency allow any of the curves. Curves of two sharing rules in one plot carry the rule in their names.

use super::part::distinct;
use crate::format;
use crate::page::Plot;
use crate::plots::{Axis, Better, Curves, DrawError, Ideal, Origin, Point, Series};
use crate::records::SimulatedCollective;

/// A series with at most this many points is not drawn.
const FEWEST: usize = 2;

/// Every plot for which the records have enough points.
///
/// # Errors
/// A plot cannot be drawn.
pub fn plots(rows: &[&SimulatedCollective]) -> Result<Vec<Plot>, DrawError> {
    let mut plots = Vec::new();
    for (collective, topology) in
        distinct(rows.iter().map(|r| (r.call.collective.clone(), r.topology.clone())))
    {
        let of: Vec<&SimulatedCollective> = rows
            .iter()
            .copied()
            .filter(|r| r.call.collective == collective && r.topology == topology)
            .collect();
        let choices = |over: String| {
            vec![("collective", collective.clone()), ("machine", topology.clone()), ("over", over)]
        };
        for bytes in distinct(of.iter().map(|r| r.call.bytes)) {
            let at: Vec<_> = of.iter().copied().filter(|r| r.call.bytes == bytes).collect();
            let size = format::bytes(bytes);
            let caption = format!("{collective} of {size} on {topology}, simulated");
            let over = Over { axis: RANKS, x: |r| f64::from(r.call.ranks) };
            plots.extend(over.plot(caption, &at)?.map(|plot| plot.among(choices(format!("ranks, {size}")))));
        }
        for ranks in distinct(of.iter().map(|r| r.call.ranks)) {
            let at: Vec<_> = of.iter().copied().filter(|r| r.call.ranks == ranks).collect();
            let ranks = format::counted(ranks as usize, "rank");
            let caption = format!("{collective} on {ranks} of {topology}, simulated");
            let over = Over { axis: SIZES, x: |r| r.call.bytes as f64 };
            plots.extend(over.plot(caption, &at)?.map(|plot| plot.among(choices(format!("sizes, {ranks}")))));
        }
    }
    Ok(plots)
}

const RANKS: Axis = Axis { label: "ranks", log: Some(2), format: format::number };
const SIZES: Axis = Axis { label: "size", log: Some(2), format: format::bytes_axis };

/// What a plot has along its horizontal axis.
struct Over {
    axis: Axis,
    x: fn(&SimulatedCollective) -> f64,
}

/// What the records of one curve have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    algorithm: String,
    sharing: String,
    lanes: Option<u32>,
    faults: Vec<String>,
}

/// The series of NCCL's model, whichever algorithm it chose.
const NCCL: &str = "NCCL";

impl Kind {
    fn of(row: &SimulatedCollective) -> Kind {
        let nccl = row.call.algorithm.starts_with("NCCL ");
        Kind {
            algorithm: if nccl { NCCL.into() } else { row.call.algorithm.clone() },
            sharing: row.sharing.clone(),
            lanes: row.lanes,
            faults: row.faults.clone(),
        }
    }

    /// The name in the legend, with what distinguishes the kind from the other kinds of the plot.
    fn name(&self, all: &[Kind]) -> String {
        let differ = |of: fn(&Kind) -> String| all.iter().any(|kind| of(kind) != of(self));
        let mut name = self.algorithm.clone();
        // NCCL's model chooses the number for each size.
        if self.algorithm != NCCL {
            name.push_str(&format!(", {}", format::counted(self.lanes.unwrap_or(1) as usize, "lane")));
        }
        if differ(|kind| kind.sharing.clone()) {
            name.push_str(&format!(", {} sharing", self.sharing));
        }
        if differ(|kind| kind.faults.join(" ")) {
            let with = if self.faults.is_empty() { "no fault".into() } else { self.faults.join(" ") };
            name.push_str(&format!(", {with}"));
        }
        name
    }
}

impl Over {
    /// The plot, if a series has points enough.
    fn plot(&self, caption: String, rows: &[&SimulatedCollective]) -> Result<Option<Plot>, DrawError> {
        let kinds = distinct(rows.iter().map(|row| Kind::of(row)));
        let rules = distinct(kinds.iter().map(|kind| &kind.sharing)).len();
        let series = kinds.iter().map(|kind| Series {
            name: kind.name(&kinds),
            origin: Origin::Simulated,
            points: self.points(rows.iter().copied().filter(|row| Kind::of(row) == *kind)),
        });
        let series: Vec<Series> = series.filter(|series| series.points.len() > FEWEST).collect();
        if series.is_empty() {
            return Ok(None);
        }
        let curves = Curves {
            label: format!("Bus bandwidth: {caption}"),
            x: self.axis,
            y: Axis { label: "busbw (GB/s)", log: Some(10), format: format::number },
            series,
            ideal: self.bound(rows),
        };
        let mixed = if rules > 1 { "; the curves have different rules of sharing links" } else { "" };
        let figure = curves.draw()?;
        Ok(Some(Plot::new(format!("{caption}{mixed}"), curves.finding(Better::Higher), figure)))
    }

    /// The points in order of x; of several records at one x the last.
    fn points<'a>(&self, rows: impl Iterator<Item = &'a SimulatedCollective>) -> Vec<Point> {
        let mut points: Vec<Point> = Vec::new();
        for row in rows.filter(|row| row.busbw_gbps > 0.0) {
            let point = Point { x: (self.x)(row), y: row.busbw_gbps, error: 0.0 };
            match points.iter_mut().find(|known| known.x == point.x) {
                Some(known) => *known = point,
                None => points.push(point),
            }
        }
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        points
    }

    /// The bandwidth that no curve can exceed, where every record has a bound.
    fn bound(&self, rows: &[&SimulatedCollective]) -> Option<Ideal> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for row in rows.iter().filter(|row| row.busbw_gbps > 0.0) {
            let bound = row.bound_us.filter(|bound| *bound > 0.0)?;
            let (x, y) = ((self.x)(row), row.busbw_gbps * row.time_us / bound);
            match points.iter_mut().find(|known| known.0 == x) {
                Some(known) => known.1 = known.1.max(y),
                None => points.push((x, y)),
            }
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (points.len() > 1).then(|| Ideal { name: "bound of bandwidth and latency".into(), points })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::CollectiveCall;

    fn row(algorithm: &str, ranks: u32, bytes: u64, sharing: &str) -> SimulatedCollective {
        let call = CollectiveCall {
            collective: "all_reduce".into(),
            algorithm: algorithm.into(),
            ranks,
            dtype: "f32".into(),
            count: bytes / 4,
            bytes,
            ..CollectiveCall::default()
        };
        SimulatedCollective {
            backend: "sim".into(),
            call,
            topology: "dgx-a100".into(),
            engine: "clocks".into(),
            sharing: sharing.into(),
            window: 1,
            time_us: 10.0,
            bound_us: Some(5.0),
            algbw_gbps: 1.0,
            busbw_gbps: 2.0,
            ..SimulatedCollective::default()
        }
    }

    #[test]
    fn a_sweep_over_sizes_has_the_line_of_the_bound_and_one_curve_of_nccl() {
        let mut rows: Vec<SimulatedCollective> =
            [10, 20, 30].map(|shift| row("ring", 64, 1 << shift, "split")).to_vec();
        rows.push(row("NCCL Tree/LL", 64, 1 << 10, "split"));
        rows.push(row("NCCL Ring/Simple", 64, 1 << 20, "split"));
        rows.push(SimulatedCollective { busbw_gbps: 3.0, ..row("NCCL Ring/Simple", 64, 1 << 30, "split") });
        let plots = plots(&rows.iter().collect::<Vec<_>>()).unwrap();
        let [plot] = &*plots else { panic!("{} plots", plots.len()) };
        let legend: Vec<&str> = plot.figure.legend.iter().map(|key| &*key.name).collect();
        assert_eq!(legend, ["ring, 1 lane", "NCCL", "bound of bandwidth and latency"]);
        assert!(plot.finding.as_deref().unwrap().contains("NCCL"), "{:?}", plot.finding);
        assert_eq!(plot.choices[2], ("over", "sizes, 64 ranks".to_string()));
        assert!(plot.figure.wide.contains("1 GiB") && !plot.caption.contains("sharing"));
    }

    #[test]
    fn a_plot_of_two_sharing_rules_says_so() {
        let rule = |algorithm: &str| if algorithm == "ring" { "split" } else { "serial_links" };
        let rows: Vec<SimulatedCollective> = ["ring", "double_binary_tree"]
            .iter()
            .flat_map(|algorithm| [8, 64, 512].map(|ranks| row(algorithm, ranks, 1 << 30, rule(algorithm))))
            .collect();
        let plots = plots(&rows.iter().collect::<Vec<_>>()).unwrap();
        assert!(
            plots[0].caption.ends_with("the curves have different rules of sharing links"),
            "{}",
            plots[0].caption
        );
        let rows: Vec<&SimulatedCollective> =
            rows.iter().filter(|row| row.call.algorithm == "ring").collect();
        assert!(!super::plots(&rows).unwrap()[0].caption.contains("sharing"));
        let name = |rows: &[&SimulatedCollective]| Kind::of(rows[0]).name(&[Kind::of(rows[0])]);
        assert_eq!(name(&rows), "ring, 1 lane");
    }
}
