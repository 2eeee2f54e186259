//! A unit's tensors: parameters, gradients and optimiser state, whole or in part, here or away in an exchange.

use super::{Keep, UnitExchange};
use crate::optim::{self, Optimiser};
use crate::{Config, Error, ParamSpec, Result};
use allfold_collectives::{Buffer, Work};
use allfold_kernels::nn::Float;
use std::ops::Range;

/// A tensor that an exchange may have.
pub(super) enum Tensor<F: Float> {
    Absent,
    Here(Buffer<F>),
    Away,
}

impl<F: Float> Tensor<F> {
    pub fn here(&self, what: &str) -> Result<&Buffer<F>> {
        match self {
            Tensor::Here(buffer) => Ok(buffer),
            _ => Err(missing(what)),
        }
    }

    pub fn here_mut(&mut self, what: &str) -> Result<&mut Buffer<F>> {
        match self {
            Tensor::Here(buffer) => Ok(buffer),
            _ => Err(missing(what)),
        }
    }

    /// Takes the tensor out for an exchange.
    pub fn send_away(&mut self, what: &str) -> Result<Buffer<F>> {
        match std::mem::replace(self, Tensor::Away) {
            Tensor::Here(buffer) => Ok(buffer),
            other => {
                *self = other;
                Err(missing(what))
            }
        }
    }

    pub fn len(&self) -> usize {
        if let Tensor::Here(buffer) = self { buffer.len() } else { 0 }
    }
}

fn missing(what: &str) -> Error {
    Error::Strategy(format!("the strategy uses the {what} of a unit while they are freed or in an exchange"))
}

/// Trained elements that one optimiser moves: a range of the unit.
pub(super) struct Piece<F: Float> {
    pub range: Range<usize>,
    /// Whether this rank's copy counts in sums over all ranks, unless another copy of the unit does.
    pub counts: bool,
    pub optimiser: Box<dyn Optimiser<F>>,
}

/// A unit on this rank. Its elements are numbered from its first parameter on; the padding at the end makes them divide into
/// equal parts over the data axis.
pub(super) struct UnitState<F: Float> {
    pub keep: Keep,
    /// The unit's elements among all parameters.
    pub values: Range<usize>,
    /// Elements with padding.
    pub padded: usize,
    /// This rank's part, which may begin or end in the padding.
    pub own: Range<usize>,
    pub params: Tensor<F>,
    pub grads: Tensor<F>,
    /// This rank's part of the parameters, where they are sharded.
    pub param_part: Vec<F>,
    /// This rank's part of the gradient, where that is sharded, and whether it has any of this step's.
    pub grad_part: Vec<F>,
    pub grad_part_begun: bool,
    pub pieces: Vec<Piece<F>>,
    /// The exchanges under way.
    pub gathering: Option<Work<Buffer<F>>>,
    pub reducing: Option<Work<Buffer<F>>>,
    /// The exchange of the gradient that was started and not finished.
    pub unfinished: Option<UnitExchange>,
}

impl<F: Float> UnitState<F> {
    /// A unit of these elements on rank `index` of `size` on the data axis. `trained` are the elements of all parameters that
    /// are trained, with whether this rank's copy counts.
    pub fn new(
        keep: Keep,
        values: Range<usize>,
        (index, size): (usize, usize),
        trained: &[(Range<usize>, bool)],
        (config, params): (&Config, &[ParamSpec]),
    ) -> Result<UnitState<F>> {
        let part = values.len().div_ceil(size);
        let own = match keep {
            Keep::Whole | Keep::First => 0..values.len(),
            _ => index * part..(index + 1) * part,
        };
        let mut pieces = Vec::new();
        if !matches!(keep, Keep::Nothing | Keep::Copy) && (keep != Keep::First || index == 0) {
            for (trained, counts) in trained {
                let inside = trained.start.max(values.start)..trained.end.min(values.end);
                if inside.is_empty() {
                    continue;
                }
                let start = (inside.start - values.start).max(own.start);
                let end = (inside.end - values.start).min(own.end);
                if start < end {
                    let range = start..end;
                    let optimiser = optim::build(config, &specs(params, &values, &range))?;
                    pieces.push(Piece { range, counts: *counts, optimiser });
                }
            }
        }
        Ok(UnitState {
            keep,
            padded: if matches!(keep, Keep::Whole | Keep::First) { values.len() } else { part * size },
            values,
            own,
            params: Tensor::Absent,
            grads: Tensor::Absent,
            param_part: Vec::new(),
            grad_part: Vec::new(),
            grad_part_begun: false,
            pieces,
            gathering: None,
            reducing: None,
            unfinished: None,
        })
    }

    /// Whether this rank keeps a part of the gradient only.
    pub fn shards_gradients(&self) -> bool {
        matches!(self.keep, Keep::ShardedGradients | Keep::Sharded)
    }

    /// The gradient of a piece, once it is reduced: on this rank's part, or the whole.
    pub fn grad_of(&mut self, range: &Range<usize>) -> Result<&mut [F]> {
        match self.shards_gradients() {
            true => Ok(&mut self.grad_part[range.start - self.own.start..range.end - self.own.start]),
            false => Ok(&mut self.grads.here_mut("gradients")?[range.clone()]),
        }
    }

    /// Moves the parameters of every piece.
    pub fn step(&mut self, lr: f64) -> Result<()> {
        let (own, shards) = (self.own.start, self.shards_gradients());
        for Piece { range, optimiser, .. } in &mut self.pieces {
            let part = range.start - own..range.end - own;
            let params = match self.keep {
                Keep::Sharded => &mut self.param_part[part.clone()],
                _ => &mut self.params.here_mut("parameters")?[range.clone()],
            };
            let grads = match shards {
                true => &self.grad_part[part],
                false => &self.grads.here("gradients")?[range.clone()],
            };
            optimiser.step(lr, params, grads);
        }
        Ok(())
    }

    /// Bytes of parameters, gradients and optimiser state.
    pub fn bytes(&mut self) -> [u64; 3] {
        let bytes = |elements: usize| (elements * size_of::<F>()) as u64;
        let state = self.pieces.iter_mut().flat_map(|piece| piece.optimiser.state().vectors);
        [
            bytes(self.params.len() + self.param_part.len()),
            bytes(self.grads.len() + self.grad_part.len()),
            bytes(state.map(|(_, values)| values.len()).sum()),
        ]
    }
}

/// The parameters within a range of a unit, as an optimiser of that range numbers their elements.
fn specs(params: &[ParamSpec], values: &Range<usize>, range: &Range<usize>) -> Vec<ParamSpec> {
    let (start, end) = (values.start + range.start, values.start + range.end);
    let inside = params.iter().filter(|place| place.range.start < end && start < place.range.end);
    let shifted = inside.map(|place| {
        let range = place.range.start.max(start) - start..place.range.end.min(end) - start;
        ParamSpec { range, ..place.clone() }
    });
    shifted.collect()
}
