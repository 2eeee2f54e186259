//! A sheet to draw on, and how its colours become names of the page's style sheet.
//!
//! plotters cannot mark the elements of a series, so a series is drawn in a placeholder colour that names the series and its colour:
//!
//! ```text
//! stroke="#100201"  ->  data-series="2" stroke="var(--s1)"
//! ```

use super::figure::{DrawError, IDEAL_SERIES};
use crate::escape::{escape, within_xml};
use plotters::prelude::*;
use plotters::style::RGBColor;

/// The width and height of a plot in CSS pixels, and the font size.
#[derive(Clone, Copy, Debug)]
pub struct Sheet {
    pub width: u32,
    pub height: u32,
    pub font_size: u32,
    pub narrow: bool,
}

impl Sheet {
    pub const fn wide(height: u32) -> Sheet {
        Sheet { width: 860, height, font_size: 14, narrow: false }
    }

    pub const fn narrow(height: u32) -> Sheet {
        Sheet { width: 350, height, font_size: 12, narrow: true }
    }
}

pub const INK: RGBColor = RGBColor(1, 1, 1);
pub const GRID: RGBColor = RGBColor(2, 2, 2);
pub const IDEAL: RGBColor = RGBColor(3, 3, 3);

/// The number of colours for series in the style sheet.
const SERIES: u8 = 8;

/// The red part of all placeholder colours of series.
const PLACEHOLDER: u8 = 16;

/// The placeholder colour of the elements of a series: the series by its place in the legend, and the number of its colour.
pub fn series(place: usize, colour: usize) -> RGBColor {
    RGBColor(PLACEHOLDER, (place % 256) as u8, (colour % usize::from(SERIES)) as u8)
}

/// The style sheet's name for the colour of a series.
pub fn series_name(colour: usize) -> String {
    format!("s{}", colour % usize::from(SERIES))
}

/// A point's tooltip.
pub struct Tip {
    pub x: i32,
    pub y: i32,
    pub text: String,
    /// The place of the point's series in the legend.
    pub series: usize,
}

/// Draws a sheet; `draw` returns the tooltips of its points.
pub fn svg(
    sheet: Sheet,
    label: &str,
    draw: impl Fn(&DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Result<Vec<Tip>, DrawError>,
) -> Result<String, DrawError> {
    let mut text = String::new();
    let tips = {
        let area = SVGBackend::with_string(&mut text, (sheet.width, sheet.height)).into_drawing_area();
        let tips = draw(&area)?;
        area.present()?;
        tips
    };
    Ok(dress(&text, sheet, label, &tips))
}

/// Sets the view box, replaces the placeholder colours by the style sheet's names, adds the tooltips.
fn dress(drawn: &str, sheet: Sheet, label: &str, tips: &[Tip]) -> String {
    let inside = drawn.find("<svg").and_then(|at| Some(at + drawn[at..].find('>')? + 1));
    let body = drawn[inside.unwrap_or(0)..].trim_end().trim_end_matches("</svg>");
    let body = body.replace("#010101", "var(--ink)").replace("#020202", "var(--grid)");
    // An opacity of 1 is the default.
    let body = body.replace("font-family=\"sans-serif\"", "").replace(" opacity=\"1\"", "");
    let body = within_xml(&marked(&body));
    let class = if sheet.narrow { "narrow" } else { "wide" };
    let Sheet { width, height, .. } = sheet;
    let tips: String = tips
        .iter()
        .map(|Tip { x, y, text, series }| {
            let text = escape(text);
            format!(r#"<circle class="tip" data-series="{series}" cx="{x}" cy="{y}" r="9" data-tip="{text}"><title>{text}</title></circle>"#)
        })
        .collect();
    let label = escape(label);
    format!(
        r#"<svg class="{class}" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{}{tips}</svg>"#,
        body.trim()
    )
}

/// Names the series of every element that has the colour of a series or of the ideal line, and replaces that colour by its name.
fn marked(body: &str) -> String {
    let mut parts = body.split('<');
    let mut text = parts.next().unwrap_or_default().to_string();
    for part in parts {
        text.push('<');
        let (tag, rest) = part.split_at(part.find('>').unwrap_or(part.len()));
        match placeholder(tag) {
            Some((colour, series, name)) => {
                let (element, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
                let attributes = attributes.replace(colour, &format!("var(--{name})"));
                text.push_str(&format!("{element} data-series=\"{series}\" {attributes}"));
            }
            None => text.push_str(tag),
        }
        text.push_str(rest);
    }
    text
}

/// The placeholder colour within an element, the series that it names, and the style sheet's name of its colour.
fn placeholder(tag: &str) -> Option<(&str, String, String)> {
    const LENGTH: usize = "#RRGGBB".len();
    let colours = tag.match_indices('#').filter_map(|(at, _)| tag.get(at..at + LENGTH));
    colours.filter_map(|colour| Some((colour, u32::from_str_radix(&colour[1..], 16).ok()?))).find_map(
        |(colour, value)| {
            let [_, red, place, index] = value.to_be_bytes();
            if RGBColor(red, place, index) == IDEAL {
                return Some((colour, IDEAL_SERIES.to_string(), "ideal".to_string()));
            }
            (red == PLACEHOLDER && index < SERIES)
                .then(|| (colour, place.to_string(), series_name(usize::from(index))))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_name_their_series_and_texts_are_left_alone() {
        let drawn = svg(Sheet::wide(100), "label", |area| {
            area.draw(&Circle::new((5, 5), 3, series(11, 9).filled()))?;
            area.draw(&Circle::new((9, 9), 3, IDEAL.filled()))?;
            area.draw(&Circle::new((9, 9), 3, INK.filled()))?;
            Ok(vec![Tip { x: 5, y: 5, text: "1".into(), series: 11 }])
        })
        .unwrap();
        assert_eq!(drawn.matches(r#"data-series="11""#).count(), 2, "{drawn}");
        assert_eq!(drawn.matches(r#"data-series="ideal""#).count(), 1, "{drawn}");
        assert_eq!(drawn.matches("data-series").count(), 3, "{drawn}");
        assert!(drawn.contains("var(--s1)") && drawn.contains("var(--ideal)"), "{drawn}");
        let text = "<text fill=\"var(--ink)\">\n#100B01\n</text>";
        assert_eq!(marked(text), text);
    }
}
