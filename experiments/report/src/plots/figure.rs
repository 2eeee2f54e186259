//! A drawn plot, and its legend.

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
    /// `cpu`, `gpu`, `simulated`, `ideal` or `bar`.
    pub marker: &'static str,
}

/// An error in drawing.
pub type DrawError = Box<dyn std::error::Error + Send + Sync>;
