//! Curves over ranks, bytes or steps, with linear or logarithmic axes.
//!
//! Points measured on CPUs are filled circles on a solid line, points measured on GPUs are filled diamonds, and simulated points are open
//! squares on a dashed line; predictions over measurements are small dots. Nothing else may use these markers. Points with a known error
//! have bars. Curves that coincide are drawn once and named together.

use super::canvas::{self, GRID, IDEAL, INK, Sheet, Tip};
use super::figure::{DrawError, Figure, Key};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged};
use plotters::prelude::*;
use std::ops::Range;

/// The origin of a series, which decides the marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A real clock, on CPU cores.
    Cpu,
    /// A real clock, on GPUs.
    Gpu,
    /// The virtual clock.
    Simulated,
    /// A prediction over a measurement of the same thing: a small dot, without a line.
    Compared,
}

impl Origin {
    /// The origin of what was measured on a device of this name.
    pub fn measured_on(device: &str) -> Origin {
        if device == "cpu" { Origin::Cpu } else { Origin::Gpu }
    }

    /// The name of the marker in the page's style sheet.
    fn marker(self) -> &'static str {
        match self {
            Origin::Cpu => "cpu",
            Origin::Gpu => "gpu",
            Origin::Simulated => "simulated",
            Origin::Compared => "compared",
        }
    }

    /// The origin in words.
    fn words(self) -> &'static str {
        match self {
            Origin::Cpu => "measured on CPU cores",
            Origin::Gpu => "measured on GPUs",
            Origin::Simulated => "simulated",
            Origin::Compared => "predicted beside measured",
        }
    }
}

/// One point.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The point's x; above 0 on a logarithmic axis.
    pub x: f64,
    /// The value; above 0 on a logarithmic axis.
    pub y: f64,
    /// Half the height of its error bar; 0 where there is none.
    pub error: f64,
}

/// One line of points.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Whether the points were measured or simulated.
    pub origin: Origin,
    /// The points in order of x.
    pub points: Vec<Point>,
}

/// The line that curves are compared with: a bound, or perfect scaling.
#[derive(Clone, Debug, PartialEq)]
pub struct Ideal {
    /// The name in the legend.
    pub name: String,
    /// The points in order of x.
    pub points: Vec<(f64, f64)>,
}

/// An axis of a plot.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// The axis's quantity with its unit.
    pub label: &'static str,
    /// The base of a logarithmic axis, 2 (ranks, bytes) or 10 (time, bandwidth); `None` for a linear axis, from 0 except for high
    /// efficiencies.
    pub log: Option<u32>,
    /// The text for a value on the axis.
    pub format: fn(f64) -> String,
}

/// A chart whose axes are both a [`Scale`].
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, Scale>>;

/// A plot of curves.
#[derive(Clone, Debug)]
pub struct Curves {
    /// A description for readers who cannot see the plot.
    pub label: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The curves of the plot.
    pub series: Vec<Series>,
    /// The ideal line that the curves are compared with.
    pub ideal: Option<Ideal>,
}

impl Curves {
    /// Draws the plot in both widths. Points that an axis cannot show (0 on a logarithmic one) are left out.
    ///
    /// # Errors
    /// There is no point at all, or plotters fails.
    pub fn draw(&self) -> Result<Figure, DrawError> {
        Curves { series: joined(&self.series), ..self.clone() }.draw_each()
    }

    fn draw_each(&self) -> Result<Figure, DrawError> {
        let draw = |sheet: Sheet| canvas::svg(sheet, &self.label, |area| self.on(area, sheet));
        let colours = self.colours();
        let keys = self.series.iter().enumerate().map(|(at, series)| Key {
            name: series.name.clone(),
            colour: canvas::series_name(colours[at]),
            marker: series.origin.marker(),
        });
        let ideal = self.ideal.iter().map(|ideal| Key {
            name: ideal.name.clone(),
            colour: "ideal".into(),
            marker: "ideal",
        });
        Ok(Figure {
            wide: draw(Sheet::wide(380))?,
            narrow: draw(Sheet::narrow(300))?,
            legend: keys.chain(ideal).collect(),
        })
    }

    /// The number of each curve's colour: a curve named `NAME, predicted` or `NAME, predicted: ...` has the colour of `NAME, measured`.
    fn colours(&self) -> Vec<usize> {
        let mut stems: Vec<Option<&str>> = Vec::new();
        let mut colours = Vec::new();
        for series in &self.series {
            let predicted = series.name.split_once(", predicted: ").map(|(stem, _)| stem);
            let suffixed =
                [", measured", ", predicted"].into_iter().find_map(|end| series.name.strip_suffix(end));
            let stem = suffixed.or(predicted);
            let known = stems.iter().position(|own| own.is_some() && *own == stem);
            colours.push(known.unwrap_or(stems.len()));
            if known.is_none() {
                stems.push(stem);
            }
        }
        colours
    }

    /// If all efficiencies or accuracies are 0.5 or more, starts their axis just below the lowest one, so that the curves can be
    /// distinguished.
    fn near_the_lowest(&self, scale: Scale, points: &[&Point]) -> Scale {
        let lowest = points.iter().map(|point| point.y - point.error).fold(f64::INFINITY, f64::min);
        match scale {
            Scale::Linear(range) if SHARES.contains(&self.y.label) && (0.5..1e6).contains(&lowest) => {
                let from = ((lowest * 10.0).floor() / 10.0 - 0.1).max(0.0);
                Scale::Linear(from..(range.end / 1.08).max(1.0) + 0.02)
            }
            other => other,
        }
    }

    fn shown(&self, point: &&Point) -> bool {
        self.fits(point.x, point.y + point.error.abs()) && self.fits(point.x, point.y)
    }

    /// Whether the axes can show a point. Beyond the limits the differences between labels are no numbers any more.
    fn fits(&self, x: f64, y: f64) -> bool {
        let fits = |axis: &Axis, value: f64| value.abs() <= 1e101 && (axis.log.is_none() || value >= 1e-101);
        fits(&self.x, x) && fits(&self.y, y)
    }

    /// The text of a point's tooltip.
    fn tip(&self, series: &Series, p: &Point) -> String {
        let origin = series.origin.words();
        let error = if p.error > 0.0 { format!(" +- {}", (self.y.format)(p.error)) } else { String::new() };
        let (at, value) = ((self.x.format)(p.x), (self.y.format)(p.y));
        let (across, up) = (self.x.label, self.y.label);
        format!("{}: {value}{error} ({up}) at {at} ({across}), {origin}", series.name)
    }

    fn on(
        &self,
        area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
        sheet: Sheet,
    ) -> Result<Vec<Tip>, DrawError> {
        let points: Vec<&Point> =
            self.series.iter().flat_map(|s| &s.points).filter(|p| self.shown(p)).collect();
        let ideal: Vec<(f64, f64)> = self.ideal.iter().flat_map(|ideal| ideal.points.clone()).collect();
        let ideal = ideal.into_iter().filter(|(x, y)| self.fits(*x, *y));
        let xs = Scale::over(self.x.log, points.iter().map(|p| p.x).chain(ideal.clone().map(|p| p.0)));
        let ys = points.iter().flat_map(|p| [p.y, p.y + p.error]).chain(ideal.clone().map(|p| p.1));
        let ys = Scale::over(self.y.log, ys).map(|scale| self.near_the_lowest(scale, &points));
        let (Some(xs), Some(ys)) = (xs, ys) else { return Err("nothing to plot".into()) };

        let font_size = sheet.font_size;
        let mut chart = ChartBuilder::on(area)
            .margin_top(8)
            .margin_right(if sheet.narrow { 14 } else { 20 })
            .x_label_area_size(font_size * 3)
            .y_label_area_size(font_size * if sheet.narrow { 4 } else { 5 })
            .build_cartesian_2d(xs, ys)?;
        chart
            .configure_mesh()
            .x_labels(if sheet.narrow { 6 } else { 12 })
            .y_labels(6)
            .x_label_formatter(&|x| (self.x.format)(*x))
            .y_label_formatter(&|y| (self.y.format)(*y))
            .x_desc(self.x.label)
            .y_desc(self.y.label)
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(("sans-serif", font_size, &INK))
            .axis_desc_style(("sans-serif", font_size, &INK))
            .draw()?;

        if self.ideal.is_some() {
            chart.draw_series(LineSeries::new(ideal, IDEAL.stroke_width(2)))?;
        }
        self.draw_series(&mut chart)
    }

    /// Draws the curves into a chart; returns the tooltips of their points.
    fn draw_series(&self, chart: &mut Chart<'_, '_>) -> Result<Vec<Tip>, DrawError> {
        let (mut tips, colours) = (Vec::new(), self.colours());
        for (at, series) in self.series.iter().enumerate() {
            let colour = canvas::series(at, colours[at]);
            let points: Vec<&Point> = series.points.iter().filter(|p| self.shown(p)).collect();
            let line = points.iter().map(|p| (p.x, p.y));
            let bars = points.iter().filter(|p| p.error > 0.0).map(|p| {
                let low = if self.y.log.is_some() { (p.y - p.error).max(p.y / 10.0) } else { p.y - p.error };
                ErrorBar::new_vertical(p.x, low, p.y, p.y + p.error, colour.filled(), 8)
            });
            chart.draw_series(bars)?;
            match series.origin {
                Origin::Cpu | Origin::Gpu => {
                    chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
                    if series.origin == Origin::Cpu {
                        chart.draw_series(
                            points.iter().map(|p| Circle::new((p.x, p.y), 4, colour.filled())),
                        )?;
                    } else {
                        chart.draw_series(points.iter().map(|p| {
                            let corners = vec![(0, -6), (6, 0), (0, 6), (-6, 0)];
                            EmptyElement::at((p.x, p.y)) + Polygon::new(corners, colour.filled())
                        }))?;
                    }
                }
                Origin::Compared => {
                    chart.draw_series(points.iter().map(|p| Circle::new((p.x, p.y), 3, colour.filled())))?;
                }
                Origin::Simulated => {
                    chart.draw_series(DashedLineSeries::new(line, 5, 4, colour.stroke_width(2)))?;
                    // Squares of curves that coincide lie inside each other, so that none is hidden.
                    let half = 3 + 3 * (self.series.len() - 1 - at).min(4) as i32 / 2;
                    let square = |p: &&Point| {
                        let corners = [(-half, -half), (half, half)];
                        EmptyElement::at((p.x, p.y)) + Rectangle::new(corners, colour.stroke_width(2))
                    };
                    chart.draw_series(points.iter().map(square))?;
                }
            }
            tips.extend(points.iter().map(|p| {
                let (x, y) = chart.backend_coord(&(p.x, p.y));
                Tip { x, y, text: self.tip(series, p), series: at }
            }));
        }
        Ok(tips)
    }
}

/// The label of an axis of shares.
const EFFICIENCY: &str = "efficiency";

/// The labels of axes of shares. If all shares are high, such an axis starts just below the lowest one.
const SHARES: [&str; 2] = [EFFICIENCY, "accuracy"];

/// Curves whose values differ by at most this share at every point are drawn as one.
const COINCIDE: f64 = 1e-3;

/// The series; series that coincide are joined to one series that has all of their names.
fn joined(series: &[Series]) -> Vec<Series> {
    let mut joined: Vec<(Series, Vec<&str>)> = Vec::new();
    for one in series {
        match joined.iter_mut().find(|(first, _)| coincide(first, one)) {
            Some((_, names)) => names.push(&one.name),
            None => joined.push((one.clone(), vec![&one.name])),
        }
    }
    joined.into_iter().map(|(series, names)| Series { name: names.join(" = "), ..series }).collect()
}

fn coincide(a: &Series, b: &Series) -> bool {
    let near = |(a, b): (&Point, &Point)| {
        a.x == b.x && a.error == b.error && (a.y - b.y).abs() <= COINCIDE * a.y.abs().max(b.y.abs())
    };
    let (short, long) = (a.points.len(), b.points.len());
    a.origin == b.origin && short == long && short > 1 && a.points.iter().zip(&b.points).all(near)
}

/// A linear or a logarithmic axis as one type, so that one function draws every plot.
#[derive(Clone)]
enum Scale {
    Linear(Range<f64>),
    Log { range: Range<f64>, base: f64 },
}

impl Scale {
    fn over(log: Option<u32>, values: impl Iterator<Item = f64>) -> Option<Scale> {
        let (low, high) = values
            .filter(|v| v.is_finite() && (log.is_none() || *v > 0.0))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        if low > high {
            return None;
        }
        Some(match log {
            None => Scale::Linear(0.0..if high > 1e-101 { high * 1.08 } else { 1.0 }),
            Some(base) => {
                let base = f64::from(base);
                Scale::Log { range: low / base.powf(0.15)..high * base.powf(0.15), base }
            }
        })
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = match self {
            Scale::Linear(range) => (value - range.start) / (range.end - range.start),
            Scale::Log { range, .. } => (value / range.start).ln() / (range.end / range.start).ln(),
        };
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    /// Labels: every power of the base, or every second, third, ... where not all labels fit.
    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let most = hint.max_num_points().max(2);
        match self {
            Scale::Linear(range) => {
                plotters::coord::types::RangedCoordf64::from(range.clone()).key_points(most)
            }
            Scale::Log { range, base } => {
                let first = range.start.log(*base).ceil() as i32;
                let last = range.end.log(*base).floor() as i32;
                if last - first < 2 && *base == 10.0 {
                    return subdivided(range);
                }
                let all = (last - first + 1).max(1) as usize;
                let skip = all.div_ceil(most).max(1);
                (first..=last).step_by(skip).map(|power| base.powi(power)).collect()
            }
        }
    }

    fn range(&self) -> Range<f64> {
        match self {
            Scale::Linear(range) | Scale::Log { range, .. } => range.clone(),
        }
    }
}

/// 1, 2 and 5 times the powers of ten: labels for an axis of less than two decades; 1 to 9 times where only one of these would be shown.
fn subdivided(range: &Range<f64>) -> Vec<f64> {
    let first = range.start.log10().floor() as i32;
    let of = |power: i32, step: i32| f64::from(step) * 10f64.powi(power);
    let all = (first..first + 4).flat_map(|power| (1..10).map(move |step| (step, of(power, step))));
    let all: Vec<(i32, f64)> = all.filter(|(_, value)| range.contains(value)).collect();
    let few = all.iter().filter(|(step, _)| [1, 2, 5].contains(step)).count();
    all.iter().filter(|(step, _)| few < 2 || [1, 2, 5].contains(step)).map(|(_, value)| *value).collect()
}

impl plotters::coord::ranged1d::ValueFormatter<f64> for Scale {
    fn format(value: &f64) -> String {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves(points: Vec<Point>) -> Curves {
        let number = |v: f64| format!("{v}");
        Curves {
            label: "time over ranks".into(),
            x: Axis { label: "ranks", log: Some(2), format: number },
            y: Axis { label: "us", log: Some(10), format: number },
            series: vec![
                Series { name: "ring <1>".into(), origin: Origin::Cpu, points: points.clone() },
                Series { name: "tree".into(), origin: Origin::Simulated, points },
            ],
            ideal: Some(Ideal { name: "bound".into(), points: vec![(1.0, 1.0), (8.0, 8.0)] }),
        }
    }

    #[test]
    fn colours_are_names_and_points_carry_texts() {
        let points = vec![Point { x: 1.0, y: 2.0, error: 0.5 }, Point { x: 8.0, y: 20.0, error: 0.0 }];
        let figure = curves(points).draw().unwrap();
        for svg in [&figure.wide, &figure.narrow] {
            assert!(svg.contains("var(--s0)") && svg.contains("var(--ideal)") && svg.contains("var(--ink)"));
            assert!(!svg.contains("#10100") && !svg.contains("#010101"), "{svg}");
            assert!(
                svg.contains("ring &lt;1&gt;: 2 +- 0.5 (us) at 1 (ranks), measured on CPU cores"),
                "{svg}"
            );
            assert!(svg.contains("tree: 20 (us) at 8 (ranks), simulated"));
        }
        assert_eq!(figure.legend.iter().map(|k| k.marker).collect::<Vec<_>>(), ["cpu", "simulated", "ideal"]);
    }

    #[test]
    fn curves_that_coincide_are_named_together_and_gpus_have_a_marker_of_their_own() {
        let points = |y: f64| vec![Point { x: 1.0, y, error: 0.0 }, Point { x: 8.0, y: 2.0 * y, error: 0.0 }];
        let one = |name: &str, origin, y| Series { name: name.into(), origin, points: points(y) };
        let series = vec![
            one("hierarchical", Origin::Simulated, 1.0),
            one("ring", Origin::Simulated, 2.0),
            one("halving_doubling", Origin::Simulated, 1.0002),
            one("ring", Origin::Gpu, 2.0),
        ];
        let figure = Curves { series, ..curves(Vec::new()) }.draw().unwrap();
        let legend: Vec<(&str, &str)> = figure.legend.iter().map(|key| (&*key.name, key.marker)).collect();
        let expected = [
            ("hierarchical = halving_doubling", "simulated"),
            ("ring", "simulated"),
            ("ring", "gpu"),
            ("bound", "ideal"),
        ];
        assert_eq!(legend, expected);
        assert!(
            figure.wide.contains("<polygon") && figure.wide.contains("measured on GPUs"),
            "{}",
            figure.wide
        );
    }

    #[test]
    fn high_efficiencies_can_be_told_apart_and_low_ones_start_at_zero() {
        let labels = |low: f64| {
            let points = vec![Point { x: 1.0, y: 1.0, error: 0.0 }, Point { x: 8.0, y: low, error: 0.0 }];
            let y = Axis { label: EFFICIENCY, log: None, format: crate::format::percent_axis };
            Curves { y, ideal: None, ..curves(points) }.draw().unwrap().wide
        };
        assert!(
            labels(0.97).contains(">\n80 %\n<") && !labels(0.97).contains(">\n0 %\n<"),
            "{}",
            labels(0.97)
        );
        assert!(labels(0.3).contains(">\n0 %\n<"));
    }

    #[test]
    fn a_logarithmic_axis_has_several_labels_and_leaves_out_what_it_cannot_show() {
        assert_eq!(subdivided(&(2124.0..6100.0)), [3e3, 4e3, 5e3, 6e3]);
        let zero = Point { x: 2.0, y: 0.0, error: 0.0 };
        let one = Point { x: 4.0, y: 1.0, error: 0.0 };
        assert!(!curves(vec![zero.clone(), one]).draw().unwrap().wide.contains(": 0 (us)"));
        let empty = Curves { ideal: None, ..curves(vec![zero]) };
        assert!(empty.draw().is_err());
    }

    #[test]
    fn numbers_of_any_size_are_drawn_or_left_out() {
        for big in
            [1e15, 1e38, 1e100, 1e300, f64::MAX, f64::INFINITY, f64::NAN, 1e-100, 1e-300, 1e-320, 0.0, -1.0]
        {
            let points = vec![
                Point { x: 1.0, y: big, error: 0.0 },
                Point { x: 8.0, y: 1.0, error: big },
                Point { x: big, y: big, error: big },
            ];
            for (label, log) in [(EFFICIENCY, None), ("us", None), ("us", Some(10)), ("us", Some(2))] {
                for points in [points.clone(), points[..1].to_vec()] {
                    let y = Axis { label, log, format: |value| value.to_string() };
                    let ideal = Some(Ideal { name: "ideal".into(), points: vec![(1.0, 1.0), (big, big)] });
                    let figure = Curves { y, ideal, ..curves(points) }.draw().unwrap();
                    assert!(figure.wide.len() < 100_000, "{big}: {} bytes", figure.wide.len());
                }
            }
        }
    }
}
