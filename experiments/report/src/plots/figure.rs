//! A drawn plot, and its legend.

/// The name in `data-series` of the ideal line's elements, and its marker.
pub(super) const IDEAL_SERIES: &str = "ideal";

/// A plot in both widths, and its legend.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The plot for desktops.
    pub wide: String,
    /// The plot for phones.
    pub narrow: String,
    /// The legend: the meaning of colours and markers.
    pub legend: Vec<Key>,
}

/// One entry of a legend.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The name in the legend.
    pub name: String,
    /// The style sheet's name of the colour: `s0`, `s1`, ...
    pub colour: String,
    /// `cpu`, `gpu`, `simulated`, `compared`, `ideal` or `bar`.
    pub marker: &'static str,
}

impl Key {
    /// The name in `data-series` of the elements of the series at this place of the legend.
    pub(crate) fn series(&self, place: usize) -> String {
        if self.marker == IDEAL_SERIES { self.marker.to_string() } else { place.to_string() }
    }
}

/// An error in drawing.
pub type DrawError = Box<dyn std::error::Error + Send + Sync>;
