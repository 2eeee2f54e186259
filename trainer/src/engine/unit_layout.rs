//! Where a unit's elements lie on one rank.

use super::Keep;
use crate::{Network, Outline, TensorSplit};
use allfold_kernels::nn::Float;
use std::ops::Range;

/// A unit's elements on one rank, numbered from its first parameter on. Padding at the end makes them divide into equal parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitLayout {
    /// The unit's elements among all parameters.
    pub values: Range<usize>,
    /// The number of elements, with padding.
    pub padded: usize,
    /// The range of this rank's part, which may begin or end in the padding.
    pub own: Range<usize>,
    /// The ranges of trained elements that this rank updates, each with whether this rank's copy counts among those of the tensor axis.
    pub pieces: Vec<(Range<usize>, bool)>,
}

impl UnitLayout {
    /// A unit of these elements on rank `index` of the `size` ranks that share one copy. `trained` are the elements of all parameters
    /// that are trained, with whether this rank's copy counts.
    pub fn new(
        keep: Keep,
        values: Range<usize>,
        (index, size): (usize, usize),
        trained: &[(Range<usize>, bool)],
    ) -> UnitLayout {
        let (part, whole) = (values.len().div_ceil(size), matches!(keep, Keep::Whole | Keep::First));
        let own = if whole { 0..values.len() } else { index * part..(index + 1) * part };
        let padded = if whole { values.len() } else { part * size };
        let updates = !matches!(keep, Keep::Nothing | Keep::Copy) && (keep != Keep::First || index == 0);
        let piece = |(trained, counts): &(Range<usize>, bool)| {
            let inside = trained.start.max(values.start)..trained.end.min(values.end);
            if inside.is_empty() {
                return None;
            }
            let start = (inside.start - values.start).max(own.start);
            let end = (inside.end - values.start).min(own.end);
            (start < end).then_some((start..end, *counts))
        };
        let pieces = trained.iter().filter(|_| updates).filter_map(piece).collect();
        UnitLayout { values, padded, own, pieces }
    }

    /// The number of elements that this rank updates.
    pub fn trained_len(&self) -> usize {
        self.pieces.iter().map(|(range, _)| range.len()).sum()
    }
}

/// The trained elements, each range with whether this rank's copy counts in sums over all ranks: for parameters that every rank
/// of the tensor axis has, only the first rank's copy counts.
pub fn trained_parts<F: Float>(
    network: &Network<F>,
    outline: &Outline,
    split: Option<&TensorSplit>,
    tensor: usize,
) -> Vec<(Range<usize>, bool)> {
    let Some(split) = split else {
        return outline.trained().iter().map(|range| (range.clone(), true)).collect();
    };
    let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
    for (param, place) in network.params().iter().enumerate() {
        let counts = tensor == 0 || !split.is_whole(param);
        let is_trained = outline.trained().iter().any(|range| range.contains(&place.range.start));
        match parts.last_mut() {
            _ if !is_trained => {}
            Some((last, same)) if last.end == place.range.start && *same == counts => {
                last.end = place.range.end
            }
            _ => parts.push((place.range.clone(), counts)),
        }
    }
    parts
}
