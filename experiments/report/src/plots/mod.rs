//! Plots as inline SVG: drawn by plotters, coloured by the page.
//!
//! A [`Figure`] is drawn twice, wide and narrow, so that its letters stay legible on a phone; the page shows one of
//! them. Colours are names that the page's style sheet defines for light and dark, and every point carries a
//! text that is shown when it is pointed at.

mod canvas;
mod curves;
mod figure;
mod finding;
mod standalone;
mod timeline;

pub use curves::{Axis, Curves, Ideal, Origin, Point, Series};
pub use figure::{DrawError, Figure, Key};
pub use finding::Better;
pub use timeline::{Bar, Timeline};
