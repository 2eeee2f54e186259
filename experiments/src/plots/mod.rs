//! Plots as inline SVG: drawn by plotters, coloured by the page.
//!
//! A [`Figure`] is drawn twice, wide and narrow, so that its letters stay legible on a phone; the page shows one of
//! them. Colours are names that the page's style sheet defines for light and dark, and every point carries a
//! text that is shown when it is pointed at.

mod canvas;
mod curves;
mod standalone;
mod timeline;

pub use curves::{Axis, Curves, Ideal, Origin, Point, Series};
pub use timeline::{Bar, Timeline};

use serde::Serialize;

/// A plot in both widths, and its legend.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// For desktops.
    pub wide: String,
    /// For phones.
    pub narrow: String,
    /// What the colours and markers mean.
    pub legend: Vec<Key>,
}

impl Figure {
    /// The figure as an SVG file of its own, in the light colours on white.
    pub fn file(&self, caption: &str) -> String {
        standalone::svg(caption, self)
    }
}

/// One entry of a legend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Key {
    /// What it stands for.
    pub name: String,
    /// The style sheet's name of the colour: `s0`, `s1`, ...
    pub colour: String,
    /// `measured`, `simulated`, `ideal` or `bar`.
    pub marker: &'static str,
}

/// What went wrong in drawing.
pub type DrawError = Box<dyn std::error::Error + Send + Sync>;
