//! Bars in rows over a common axis: a rank's activities over time, or the parts of a strategy's time, bytes or memory.

use super::canvas::{self, GRID, INK, Sheet, Tip};
use super::figure::{DrawError, Figure, Key};
use crate::format;
use plotters::prelude::*;

/// A bar of a timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Index into [`Timeline::rows`].
    pub row: usize,
    /// Index into [`Timeline::kinds`], which decides the colour.
    pub kind: usize,
    /// The activity's name, shown under the pointer.
    pub name: String,
    /// Where the bar begins on the axis, in the axis's unit.
    pub start: f64,
    /// Where the bar ends on the axis, in the axis's unit.
    pub end: f64,
}

/// The most bars of a plot: each takes 200 bytes of the page, twice.
const MOST_BARS: usize = 6_000;

/// A plot of bars over a common axis, which is often time.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// A description for readers who cannot see the plot.
    pub label: String,
    /// The label of the axis, which is or names its unit: `us`, `virtual time (us)`, `KiB`.
    pub unit: &'static str,
    /// The rows from top to bottom: (long, short) names.
    pub rows: Vec<(String, String)>,
    /// The names of the kinds of bars; each kind has a colour.
    pub kinds: Vec<String>,
    /// All bars of the timeline.
    pub bars: Vec<Bar>,
}

impl Timeline {
    /// Draws the timeline in both widths.
    ///
    /// # Errors
    /// There is no bar at all, or plotters fails.
    pub fn draw(&self) -> Result<Figure, DrawError> {
        let height = 68 + 26 * self.rows.len() as u32;
        let bars = coarse(&self.bars, self.rows.len(), MOST_BARS);
        let draw = |sheet: Sheet| canvas::svg(sheet, &self.label, |area| self.on(area, sheet, &bars));
        let legend = self.kinds.iter().enumerate().map(|(at, name)| Key {
            name: name.clone(),
            colour: canvas::series_name(at),
            marker: "bar",
        });
        Ok(Figure {
            wide: draw(Sheet::wide(height))?,
            narrow: draw(Sheet::narrow(height))?,
            legend: legend.collect(),
        })
    }

    fn on(
        &self,
        area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
        sheet: Sheet,
        bars: &[Bar],
    ) -> Result<Vec<Tip>, DrawError> {
        let end = end_of(bars);
        if end <= 0.0 {
            return Err("nothing to plot".into());
        }
        let (count, font_size) = (self.rows.len(), sheet.font_size);
        let mut chart = ChartBuilder::on(area)
            .margin_top(4)
            .margin_right(28)
            .x_label_area_size(font_size * 3)
            .y_label_area_size(if sheet.narrow { font_size * 5 } else { font_size * 11 })
            // plotters draws nothing on an axis of one segment: a single row covers two.
            .build_cartesian_2d(0.0..end * 1.01, (0..count.max(2) - 1).into_segmented())?;
        let name = |row: &SegmentValue<usize>| match row {
            SegmentValue::CenterOf(at) | SegmentValue::Exact(at) => {
                let names = count.checked_sub(at + 1).and_then(|at| self.rows.get(at));
                names
                    .map(|(long, short)| if sheet.narrow { short } else { long })
                    .cloned()
                    .unwrap_or_default()
            }
            SegmentValue::Last => String::new(),
        };
        chart
            .configure_mesh()
            .x_labels(if sheet.narrow { 4 } else { 9 })
            .y_labels(count + 1)
            .x_label_formatter(&|x| format::number(*x))
            .y_label_formatter(&name)
            .x_desc(self.unit)
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .disable_y_mesh()
            .label_style(("sans-serif", font_size, &INK))
            .axis_desc_style(("sans-serif", font_size, &INK))
            .draw()?;
        let mut tips = Vec::new();
        for bar in bars {
            let Some(row) = count.checked_sub(bar.row + 1) else { continue };
            let top = if count == 1 { SegmentValue::Last } else { SegmentValue::Exact(row + 1) };
            let corners = [(bar.start, SegmentValue::Exact(row)), (bar.end, top)];
            let middle = ((bar.start + bar.end) / 2.0, SegmentValue::CenterOf(row));
            let mut shape = Rectangle::new(corners, canvas::series(bar.kind, bar.kind).filled());
            shape.set_margin(3, 3, 0, 0);
            chart.draw_series([shape])?;
            let (x, y) = chart.backend_coord(&middle);
            let (long, _) = &self.rows[bar.row];
            let text = format!("{long}: {}, {:.1} to {:.1}", bar.name, bar.start, bar.end);
            tips.push(Tip { x, y, text, series: bar.kind });
        }
        Ok(tips)
    }
}

fn end_of(bars: &[Bar]) -> f64 {
    bars.iter().map(|bar| bar.end).fold(0.0, f64::max)
}

/// The bars. If there are more than `most`, neighbours in a row that are too short to be distinguished are joined to one bar, which has
/// the kind that takes the most of its length and the name of its longest bar.
fn coarse(bars: &[Bar], rows: usize, most: usize) -> Vec<Bar> {
    if bars.len() <= most {
        return bars.to_vec();
    }
    let least = end_of(bars) * rows.max(1) as f64 / most as f64;
    let mut drawn = Vec::new();
    for row in 0..rows {
        let mut own: Vec<&Bar> = bars.iter().filter(|bar| bar.row == row).collect();
        own.sort_by(|a, b| a.start.total_cmp(&b.start));
        let mut group: Vec<&Bar> = Vec::new();
        for bar in own {
            let is_full = group.first().is_some_and(|first| bar.end - first.start > least);
            if is_full {
                drawn.extend(joined(&group));
                group.clear();
            }
            group.push(bar);
        }
        drawn.extend(joined(&group));
    }
    drawn
}

/// One bar for several neighbours.
fn joined(group: &[&Bar]) -> Option<Bar> {
    let length = |bar: &Bar| bar.end - bar.start;
    let all_of =
        |kind: usize| group.iter().filter(|bar| bar.kind == kind).map(|bar| length(bar)).sum::<f64>();
    let kind = group.iter().map(|bar| bar.kind).max_by(|a, b| all_of(*a).total_cmp(&all_of(*b)))?;
    let longest =
        group.iter().filter(|bar| bar.kind == kind).max_by(|a, b| length(a).total_cmp(&length(b)))?;
    let name = match group.len() - 1 {
        0 => longest.name.clone(),
        more => format!("{} and {more} more", longest.name),
    };
    let end = group.iter().map(|bar| bar.end).fold(0.0, f64::max);
    Some(Bar { row: longest.row, kind, name, start: group.first()?.start, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_bars_are_drawn_as_few_that_cover_the_same() {
        let bar = |row: usize, at: usize| Bar {
            row,
            kind: usize::from(at.is_multiple_of(5)),
            name: format!("work {at}"),
            start: at as f64,
            end: at as f64 + 1.0,
        };
        let bars: Vec<Bar> = (0..2).flat_map(|row| (0..10_000).map(move |at| bar(row, at))).collect();
        let drawn = coarse(&bars, 2, 1_000);
        assert!((500..=1_100).contains(&drawn.len()), "{}", drawn.len());
        for row in 0..2 {
            let own: Vec<&Bar> = drawn.iter().filter(|bar| bar.row == row).collect();
            assert!(own.windows(2).all(|two| two[0].end == two[1].start), "row {row} has gaps");
            assert_eq!((own[0].start, own[own.len() - 1].end), (0.0, 10_000.0));
        }
        assert!(drawn.iter().all(|bar| bar.kind == 0 && bar.name.ends_with(" more")), "{:?}", drawn[0]);
        assert_eq!(coarse(&bars, 2, 20_000), bars);
    }

    #[test]
    fn rows_are_named_and_bars_carry_texts() {
        let bar = |row, start, end| Bar { row, kind: row, name: "work".into(), start, end };
        let names = |n: &str| (format!("rank {n} compute"), format!("r{n}"));
        let timeline = Timeline {
            label: "one step".into(),
            unit: "us",
            rows: vec![names("0"), names("1")],
            kinds: vec!["a".into(), "b".into()],
            bars: vec![bar(0, 0.0, 5.0), bar(1, 5.0, 9.0)],
        };
        let figure = timeline.draw().unwrap();
        assert!(figure.wide.contains("rank 1 compute: work, 5.0 to 9.0"), "{}", figure.wide);
        assert!(figure.wide.contains("var(--s1)"));
        assert!(figure.narrow.contains(">\nr1\n<"), "{}", figure.narrow);
        assert!(Timeline { bars: vec![], ..timeline }.draw().is_err());
    }

    /// Regression: of a single row neither the name nor a bar was drawn, and then an empty row above it.
    #[test]
    fn a_single_row_is_drawn_and_no_empty_row_beside_it() {
        let timeline = Timeline {
            label: "one step".into(),
            unit: "us",
            rows: vec![("ranks 0..63".into(), "0..63".into())],
            kinds: vec!["a".into()],
            bars: vec![Bar { row: 0, kind: 0, name: "work".into(), start: 0.0, end: 3600.0 }],
        };
        let wide = timeline.draw().unwrap().wide;
        let bars = wide.lines().filter(|line| line.contains("<rect") && line.contains("var(--s0)"));
        let sides = bars.map(|line| {
            let side = |name: &str| {
                let text = line.split(&format!("{name}=\"")).nth(1).unwrap();
                text.split('"').next().unwrap().parse::<f64>().unwrap()
            };
            (side("width"), side("height"))
        });
        assert!(sides.into_iter().any(|(width, height)| width > 100.0 && height > 30.0), "{wide}");
        assert!(wide.contains(">\nranks 0..63\n<"), "{wide}");
        assert!(wide.contains(">\n3500\n<") && !wide.contains("500.0\n"), "{wide}");
    }
}
