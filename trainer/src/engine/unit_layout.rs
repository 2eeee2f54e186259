//! Where a unit's elements lie on one rank.

use super::AxisPosition;
use crate::{Network, Outline, TensorSplit};
use allfold_kernels::nn::Float;
use std::ops::Range;

/// What a rank keeps of a unit between steps. Sharded tensors are cut into equal parts over the data axis, of which a rank keeps
/// its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The whole of parameters, gradients and optimiser state.
    Whole,
    /// Whole parameters and gradients; a part of the optimiser state.
    ShardedState,
    /// Whole parameters; a part of gradients and optimiser state.
    ShardedGradients,
    /// A part of parameters, gradients and optimiser state.
    Sharded,
    /// The first rank of the data axis keeps everything. The others keep copies of its parameters and their parts of the
    /// gradients, and no optimiser state.
    First,
    /// A copy of the parameters, and the gradients of this rank's samples. Servers keep the parameters and the optimiser state.
    Copy,
    /// Nothing: other stages of a pipeline hold the unit.
    Nothing,
}

/// Layers whose parameters lie in one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamUnit {
    /// The layers, by number.
    pub layers: Range<usize>,
    /// What this rank keeps of the unit.
    pub keep: Keep,
}

/// A unit's elements on one rank, numbered from its first parameter on. With the padding at the end they divide into equal parts.
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
    /// A unit of these elements on the rank with this position among the ranks that share one copy. `trained` are the elements of all parameters
    /// that are trained, with whether this rank's copy counts.
    pub fn new(
        keep: Keep,
        values: Range<usize>,
        AxisPosition { index, size }: AxisPosition,
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

/// For each layer, the unit of its parameters, which for a tied layer are those of its owner.
pub fn units_of_layers(outline: &Outline, units: &[ParamUnit]) -> Vec<usize> {
    let unit_of = |layer: usize| {
        let owner = outline.owner(layer);
        units.iter().position(|unit| unit.layers.contains(&owner)).unwrap_or_default()
    };
    (0..outline.layers()).map(unit_of).collect()
}

/// The number of micro-batches that have samples, if `samples` samples are cut into `of` micro-batches.
pub fn filled_micro_batches(samples: usize, of: usize) -> usize {
    samples.div_ceil(samples.div_ceil(of.max(1)).max(1)).max(1)
}

/// The samples of micro-batch `micro`, if `samples` samples are cut into `of` micro-batches.
pub fn micro_batch(samples: usize, micro: usize, of: usize) -> Range<usize> {
    let size = samples.div_ceil(of.max(1)).max(1);
    (micro * size).min(samples)..((micro + 1) * size).min(samples)
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
