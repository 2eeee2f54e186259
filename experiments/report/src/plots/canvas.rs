//! A sheet to draw on, and how its colours become names of the page's style sheet.

use super::figure::DrawError;
use crate::escape::escape;
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

/// The colour of a series.
pub fn series(index: usize) -> RGBColor {
    RGBColor(16, 16, (index % usize::from(SERIES)) as u8)
}

/// The style sheet's name for the colour of a series.
pub fn series_name(index: usize) -> String {
    format!("s{}", index % usize::from(SERIES))
}

/// A point's tooltip.
pub struct Tip {
    pub x: i32,
    pub y: i32,
    pub text: String,
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
    let mut body = body.replace("#010101", "var(--ink)").replace("#020202", "var(--grid)");
    body = body.replace("#030303", "var(--ideal)").replace("font-family=\"sans-serif\"", "");
    for index in 0..usize::from(SERIES) {
        let name = series_name(index);
        body = body.replace(&format!("#10100{index}"), &format!("var(--{name})"));
    }
    let class = if sheet.narrow { "narrow" } else { "wide" };
    let Sheet { width, height, .. } = sheet;
    let tips: String = tips
        .iter()
        .map(|Tip { x, y, text }| {
            let text = escape(text);
            format!(r#"<circle class="tip" cx="{x}" cy="{y}" r="9" data-tip="{text}"><title>{text}</title></circle>"#)
        })
        .collect();
    let label = escape(label);
    format!(
        r#"<svg class="{class}" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{}{tips}</svg>"#,
        body.trim()
    )
}
