//! One sentence about a plot of curves, computed from the points.
//!
//! ```text
//! best from 64 ranks on: double_binary_tree (up to 32 ranks: ring); at 1024 ranks 2.4 times better than ring
//! ```

use super::curves::{Axis, Curves, Series};
use crate::format;

/// Which direction of the vertical axis is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Throughput, bandwidth, efficiency.
    Higher,
    /// Time, loss.
    Lower,
}

/// Values that differ by at most this share count as equal.
const EQUAL: f64 = 0.01;

/// The best curve over a range of x: its index, the first and the last x.
struct Lead {
    series: usize,
    first: f64,
    last: f64,
}

impl Curves {
    /// The finding of the points: which curve is the best and where another curve overtakes it; of a single curve, its ends. `None` if a
    /// single curve has fewer than two points, or if several curves have no x in common.
    pub fn finding(&self, better: Better) -> Option<String> {
        let series: Vec<&Series> = self.series.iter().filter(|series| !series.points.is_empty()).collect();
        match &*series {
            [] => None,
            [one] => self.ends(one, better),
            many => self.leads(many, better),
        }
    }

    /// The best and the last point of a curve, or the first and the last if one of them is the best.
    fn ends(&self, series: &Series, better: Better) -> Option<String> {
        let (first, last) = (series.points.first()?, series.points.last()?);
        if series.points.len() < 2 {
            return None;
        }
        let best = series.points.iter().reduce(|a, b| if beats(b.y, a.y, better) { b } else { a })?;
        let value = |y: f64| (self.y.format)(y);
        let (x, label) = (|x: f64| at(&self.x, x), self.y.label);
        let name = &series.name;
        Some(if best.x == last.x || best.x == first.x {
            format!(
                "{name}: {label} is {} at {} and {} at {}",
                value(first.y),
                x(first.x),
                value(last.y),
                x(last.x)
            )
        } else {
            format!(
                "{name}: {label} is best at {}, {}; at {} it is {}",
                x(best.x),
                value(best.y),
                x(last.x),
                value(last.y)
            )
        })
    }

    /// Which curve is the best over which range.
    fn leads(&self, series: &[&Series], better: Better) -> Option<String> {
        let leads = ranges(series, better);
        let last = leads.last()?;
        let name = |lead: &Lead| &series[lead.series].name;
        let ratio = self.ratio(series, last, better);
        let place = at(&self.x, last.last);
        let ratio = ratio.map_or_else(String::new, |ratio| format!("; at {place} {ratio}"));
        let from = |lead: &Lead| format!("best from {} on: {}", at(&self.x, lead.first), name(lead));
        let up_to = |lead: &Lead| format!("up to {}: {}", at(&self.x, lead.last), name(lead));
        Some(match &*leads {
            [] => return None,
            [only] if only.first == only.last => format!("best at {place}: {}{ratio}", name(only)),
            [only] => format!(
                "best, or within 1 % of it, from {} to {place}: {}{ratio}",
                at(&self.x, only.first),
                name(only)
            ),
            [before, after] => format!("{} ({}){ratio}", from(after), up_to(before)),
            [first, .., before, after] => {
                format!("{} ({}, {}){ratio}", from(after), up_to(first), up_to(before))
            }
        })
    }

    /// How much better the last leader is than the worst curve at the same x.
    fn ratio(&self, series: &[&Series], lead: &Lead, better: Better) -> Option<String> {
        let here = |series: &Series| value_at(series, lead.last);
        let best = here(series[lead.series])?;
        let others = series.iter().enumerate().filter(|(index, _)| *index != lead.series);
        let worst = others
            .filter_map(|(_, series)| Some((series, here(series)?)))
            .reduce(|a, b| if beats(b.1, a.1, better) { a } else { b });
        let (worst, value) = worst?;
        let factor = if better == Better::Higher { best / value } else { value / best };
        if !factor.is_finite() || factor < 1.0 + EQUAL {
            return None;
        }
        let rank = if series.len() > 2 { ", the last" } else { "" };
        Some(format!("{} times better than {}{rank}", format::number(factor), worst.name))
    }
}

fn beats(a: f64, b: f64, better: Better) -> bool {
    if better == Better::Higher { a > b } else { a < b }
}

fn value_at(series: &Series, x: f64) -> Option<f64> {
    series.points.iter().find(|point| point.x == x).map(|point| point.y)
}

/// The leaders in order of x, over each x that two or more curves have. A leader remains while it equals the best ([`EQUAL`]).
fn ranges(series: &[&Series], better: Better) -> Vec<Lead> {
    let mut xs: Vec<f64> =
        series.iter().flat_map(|series| series.points.iter().map(|point| point.x)).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let mut leads: Vec<Lead> = Vec::new();
    for x in xs {
        let here: Vec<(usize, f64)> = series
            .iter()
            .enumerate()
            .filter_map(|(index, series)| Some((index, value_at(series, x)?)))
            .collect();
        let best = here.iter().copied().reduce(|a, b| if beats(b.1, a.1, better) { b } else { a });
        let Some((index, best)) = best.filter(|_| here.len() > 1) else { continue };
        let equal = |value: f64| (value - best).abs() <= EQUAL * best.abs();
        match leads.last_mut() {
            Some(lead) if here.iter().any(|(index, value)| *index == lead.series && equal(*value)) => {
                lead.last = x
            }
            _ => leads.push(Lead { series: index, first: x, last: x }),
        }
    }
    leads
}

/// A place on the horizontal axis in words: `64 ranks`, `1 MiB`.
fn at(axis: &Axis, x: f64) -> String {
    let text = (axis.format)(x);
    match axis.label {
        "ranks" if x == 1.0 => "1 rank".into(),
        "ranks" | "samples seen" | "steps" => format!("{text} {}", axis.label),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Origin, Point};
    use super::*;

    fn curves(series: &[(&str, &[(f64, f64)])]) -> Curves {
        let points =
            |points: &[(f64, f64)]| points.iter().map(|&(x, y)| Point { x, y, error: 0.0 }).collect();
        Curves {
            label: String::new(),
            x: Axis { label: "ranks", log: Some(2), format: format::number },
            y: Axis { label: "busbw (GB/s)", log: None, format: format::number },
            series: series
                .iter()
                .map(|(name, of)| Series {
                    name: name.to_string(),
                    origin: Origin::Simulated,
                    points: points(of),
                })
                .collect(),
            ideal: None,
        }
    }

    #[test]
    fn the_place_where_one_curve_overtakes_another_is_named() {
        let ring = [(8.0, 20.0), (64.0, 9.0), (1024.0, 2.0)];
        let tree = [(8.0, 10.0), (64.0, 10.0), (1024.0, 6.0)];
        let both = curves(&[("ring", &ring), ("tree", &tree)]);
        let said = both.finding(Better::Higher).unwrap();
        assert_eq!(
            said,
            "best from 64 ranks on: tree (up to 8 ranks: ring); at 1024 ranks 3 times better than ring"
        );
        let said = both.finding(Better::Lower).unwrap();
        assert!(said.starts_with("best from 64 ranks on: ring (up to 8 ranks: tree)"), "{said}");
    }

    #[test]
    fn one_leader_one_curve_and_nothing_each_say_what_they_are() {
        let (high, low) = ([(1.0, 2.0), (2.0, 4.0)], [(1.0, 1.0), (2.0, 2.0)]);
        let said = curves(&[("a", &high), ("b", &low)]).finding(Better::Higher).unwrap();
        assert_eq!(
            said,
            "best, or within 1 % of it, from 1 rank to 2 ranks: a; at 2 ranks 2 times better than b"
        );
        let said = curves(&[("a", &high)]).finding(Better::Higher).unwrap();
        assert_eq!(said, "a: busbw (GB/s) is 2 at 1 rank and 4 at 2 ranks");
        assert_eq!(curves(&[("a", &high[..1])]).finding(Better::Higher), None);
        assert_eq!(curves(&[]).finding(Better::Higher), None);
    }
}
