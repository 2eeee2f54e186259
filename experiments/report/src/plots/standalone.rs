//! A figure as a file of its own: its caption and legend drawn in, the page's light colours written out.
//!
//! ```text
//! caption
//! -o- one series   -[]- another   --- ideal
//! +---------------------------------------+
//! |  the wide drawing of the figure        |
//! +---------------------------------------+
//! ```

use super::canvas::Sheet;
use super::figure::{Figure, Key};
use crate::escape::escape;

/// The page's style sheet, which defines the names of the colours.
const STYLE: &str = include_str!("../style.css");
const MARGIN: u32 = 16;
const LINE: u32 = 24;
/// The average width of a character in the legend.
const CHARACTER: u32 = 8;

impl Figure {
    /// The figure as an SVG file of its own, in the light colours on white.
    pub fn file(&self, caption: &str) -> String {
        svg(caption, self).0
    }

    /// Several figures, each with its caption, as one SVG file: one below the other.
    pub fn stacked(figures: &[(String, Figure)]) -> String {
        let (mut inside, mut y) = (String::new(), 0);
        for (caption, figure) in figures {
            let (text, height) = svg(caption, figure);
            inside.push_str(&text.replacen("<svg ", &format!("<svg y=\"{y}\" "), 1));
            y += height;
        }
        let Sheet { width, .. } = Sheet::wide(0);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{y}\" viewBox=\"0 0 {width} {y}\">\n{inside}</svg>\n"
        )
    }
}

/// A whole SVG file on a white background, and its height.
fn svg(caption: &str, figure: &Figure) -> (String, u32) {
    let Sheet { width, .. } = Sheet::wide(0);
    let (legend, rows) = legend(&figure.legend, width);
    let top = MARGIN + LINE + rows * LINE + 4;
    let drawing = figure.wide.replacen("<svg ", &format!("<svg y=\"{top}\" "), 1);
    let drawing = drawing
        .replace(r#"class="wide" "#, "")
        .replace(r#"class="tip""#, r#"fill="none" pointer-events="all""#);
    let drawn = height(&figure.wide);
    let drawing = drawing.replacen("<svg ", &format!("<svg width=\"{width}\" height=\"{drawn}\" "), 1);
    let caption = escape(caption);
    let whole = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{0}" viewBox="0 0 {width} {0}" font-family="system-ui, sans-serif" font-size="14">
<rect width="100%" height="100%" fill="white"/>
<text x="{MARGIN}" y="{1}" font-weight="600" fill="var(--ink)">{caption}</text>
{legend}{drawing}
</svg>
"#,
        top + drawn,
        MARGIN + 10,
    );
    let text = colours().fold(whole, |text, (name, value)| text.replace(&format!("var({name})"), value));
    (text, top + drawn)
}

/// The names and colours of the light theme, which is the first rule of the style sheet.
fn colours() -> impl Iterator<Item = (&'static str, &'static str)> {
    let light = STYLE.split('}').next().unwrap_or_default().split('{').nth(1).unwrap_or_default();
    light.split(';').filter_map(|rule| rule.split_once(':')).map(|(name, value)| (name.trim(), value.trim()))
}

/// The height of a drawing, from its view box.
fn height(svg: &str) -> u32 {
    let view = svg.split("viewBox=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    view.split(' ').nth(3).and_then(|height| height.parse().ok()).unwrap_or_default()
}

/// Lays the legend's entries side by side, in as many rows as they need.
fn legend(keys: &[Key], width: u32) -> (String, u32) {
    let (mut text, mut x, mut row) = (String::new(), MARGIN, 1);
    for key in keys {
        let needs = 36 + CHARACTER * key.name.chars().count() as u32 + 16;
        if x > MARGIN && x + needs > width {
            (x, row) = (MARGIN, row + 1);
        }
        text.push_str(&entry(key, x, MARGIN + row * LINE));
        x += needs;
    }
    (text, if keys.is_empty() { 0 } else { row })
}

/// One entry of the legend: the marker of a series, as on its curve, and the name of the series.
fn entry(key: &Key, x: u32, y: u32) -> String {
    let (colour, middle, name) = (format!("var(--{})", key.colour), y + 5, escape(&key.name));
    let line = |dash: &str| {
        format!(r#"<path d="M{x} {middle}h26" stroke="{colour}" stroke-width="2" fill="none"{dash}/>"#)
    };
    let marker = match key.marker {
        "cpu" => {
            format!(r#"{}<circle cx="{}" cy="{middle}" r="5" fill="{colour}"/>"#, line(""), x + 13)
        }
        "gpu" => {
            let corners = format!("M{} {}l6 6l-6 6l-6 -6z", x + 13, middle - 6);
            format!(r#"{}<path d="{corners}" fill="{colour}"/>"#, line(""))
        }
        "simulated" => format!(
            r#"{}<rect x="{}" y="{y}" width="10" height="10" fill="white" stroke="{colour}" stroke-width="2"/>"#,
            line(r#" stroke-dasharray="5 4""#),
            x + 8
        ),
        "compared" => format!(r#"<circle cx="{}" cy="{middle}" r="4" fill="{colour}"/>"#, x + 13),
        "bar" => format!(r#"<rect x="{}" y="{y}" width="14" height="11" fill="{colour}"/>"#, x + 12),
        _ => line(""),
    };
    format!("{marker}<text x=\"{}\" y=\"{}\" fill=\"var(--ink)\">{name}</text>\n", x + 33, y + 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plots::canvas;

    fn figure() -> Figure {
        let key = |marker, colour: &str| Key { name: "a < b".into(), colour: colour.into(), marker };
        let legend = vec![
            key("cpu", "s0"),
            key("gpu", "s3"),
            key("simulated", "s1"),
            key("bar", "s2"),
            key("ideal", "ideal"),
        ];
        let draw = |sheet| {
            canvas::svg(sheet, "label", |area| {
                use plotters::prelude::*;
                area.draw(&Circle::new((5, 5), 3, canvas::series(0, 0).filled()))?;
                Ok(vec![canvas::Tip { x: 5, y: 5, text: "1 & 2".into(), series: 0 }])
            })
        };
        Figure { wide: draw(Sheet::wide(380)).unwrap(), narrow: draw(Sheet::narrow(300)).unwrap(), legend }
    }

    #[test]
    fn a_file_needs_no_page() {
        let (text, _) = svg("Scaling & more", &figure());
        assert!(text.starts_with("<svg xmlns="), "{text}");
        assert!(!text.contains("var(") && !text.contains("class="), "{text}");
        assert!(text.contains("Scaling &amp; more") && text.contains("a &lt; b") && text.contains("#0b6bb5"));
        assert_eq!(text.matches("<svg").count(), text.matches("</svg>").count());
    }

    #[test]
    fn figures_of_one_file_lie_below_each_other() {
        let (_, height) = svg("first", &figure());
        let text = Figure::stacked(&[("first".into(), figure()), ("second".into(), figure())]);
        assert_eq!(text.matches("<svg").count(), text.matches("</svg>").count());
        assert!(
            text.starts_with("<svg xmlns=") && text.contains(&format!("height=\"{}\"", 2 * height)),
            "{text}"
        );
        let at = |what: &str| text.find(what).unwrap();
        assert!(
            at("<svg y=\"0\"") < at(">first<") && at(">first<") < at(&format!("<svg y=\"{height}\"")),
            "{text}"
        );
        assert!(at(&format!("<svg y=\"{height}\"")) < at(">second<"), "{text}");
    }

    #[test]
    fn a_long_legend_takes_more_rows() {
        let keys = vec![Key { name: "n".repeat(60), colour: "s0".into(), marker: "cpu" }; 3];
        assert_eq!(legend(&keys, 860).1, 3);
        assert_eq!(legend(&keys[..1], 860).1, 1);
        assert_eq!(legend(&[], 860).1, 0);
    }
}
