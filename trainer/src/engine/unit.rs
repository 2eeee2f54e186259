//! A unit's tensors: parameters, gradients and optimiser state, whole or in part, present or in an exchange.

use super::unit_layout::UnitLayout;
use super::{AxisPosition, FreeBuffers, Keep, UnitExchange};
use crate::optim::{self, Optimiser};
use crate::{Config, Error, ParamSpec, Result};
use allfold_collectives::{Buffer, Work};
use allfold_kernels::nn::Float;
use std::ops::{Deref, DerefMut, Range};

/// A tensor that may be in an exchange.
pub(super) enum Tensor<F: Float> {
    Absent,
    Here(Buffer<F>),
    /// In an exchange, with the number of its elements.
    Away(usize),
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

    /// Takes the tensor for an exchange.
    pub fn send_away(&mut self, what: &str) -> Result<Buffer<F>> {
        let Tensor::Here(buffer) = self else { return Err(missing(what)) };
        let away = Tensor::Away(buffer.len());
        match std::mem::replace(self, away) {
            Tensor::Here(buffer) => Ok(buffer),
            _ => Err(missing(what)),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Tensor::Absent => 0,
            Tensor::Here(buffer) => buffer.len(),
            Tensor::Away(elements) => *elements,
        }
    }
}

fn missing(what: &str) -> Error {
    Error::Strategy(format!("the strategy uses the {what} of a unit while they are freed or in an exchange"))
}

/// Trained elements that one optimiser updates: a range of the unit.
pub(super) struct Piece<F: Float> {
    pub range: Range<usize>,
    /// The number of the first parameter that has elements in the range.
    pub first_param: usize,
    /// Whether this rank's copy counts among those of the tensor axis; `Worker::counts_here` adds the other axes.
    pub counts: bool,
    pub optimiser: Box<dyn Optimiser<F>>,
}

/// A unit on this rank. Its elements are numbered from its first parameter on; with the padding at the end they divide into
/// equal parts over the data axis.
pub(super) struct UnitState<F: Float> {
    pub keep: Keep,
    /// The unit's elements among all parameters.
    pub values: Range<usize>,
    /// The number of elements, with padding.
    pub padded: usize,
    /// The range of this rank's part, which may begin or end in the padding.
    pub own: Range<usize>,
    pub params: Tensor<F>,
    pub grads: Tensor<F>,
    /// This rank's part of the parameters, if they are sharded.
    pub param_part: Vec<F>,
    /// This rank's part of the gradient, if it is sharded, and whether it contains gradients of this step.
    pub grad_part: Vec<F>,
    pub grad_part_begun: bool,
    pub pieces: Vec<Piece<F>>,
    /// The gather of the parameters, while it is in progress.
    pub gathering: Option<Work<Buffer<F>>>,
    pub reducing: Option<Work<Buffer<F>>>,
    /// The sum of this rank's part of the gradient over the ranks with the same part, while it is in progress, and its elements.
    pub summing: Option<(Work<Buffer<F>>, usize)>,
    /// The exchange of the gradient that was started and not finished.
    pub unfinished: Option<UnitExchange>,
}

/// The units of a rank, in order of layers, and buffers of whole units that are not in use.
pub(super) struct Units<F: Float> {
    all: Vec<UnitState<F>>,
    pub free: FreeBuffers<Buffer<F>>,
}

impl<F: Float> Units<F> {
    pub fn new(all: Vec<UnitState<F>>) -> Units<F> {
        Units { all, free: FreeBuffers::default() }
    }
}

impl<F: Float> Deref for Units<F> {
    type Target = [UnitState<F>];

    fn deref(&self) -> &[UnitState<F>] {
        &self.all
    }
}

impl<F: Float> DerefMut for Units<F> {
    fn deref_mut(&mut self) -> &mut [UnitState<F>] {
        &mut self.all
    }
}

impl<F: Float> UnitState<F> {
    /// A unit of these elements; the arguments are those of [`UnitLayout::new`].
    pub fn new(
        keep: Keep,
        values: Range<usize>,
        place: AxisPosition,
        trained: &[(Range<usize>, bool)],
        (config, params): (&Config, &[ParamSpec]),
    ) -> Result<UnitState<F>> {
        let UnitLayout { values, padded, own, pieces } = UnitLayout::new(keep, values, place, trained);
        let piece = |(range, counts): (Range<usize>, bool)| {
            let optimiser = optim::build(config, &specs(params, &values, &range))?;
            let before = |place: &&ParamSpec| place.range.end <= values.start + range.start;
            let first_param = params.iter().filter(before).count();
            Ok(Piece { range, first_param, counts, optimiser })
        };
        let pieces = pieces.into_iter().map(piece).collect::<Result<_>>()?;
        Ok(UnitState {
            keep,
            padded,
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
            summing: None,
            unfinished: None,
        })
    }

    /// Whether this rank keeps a part of the gradient only.
    pub fn shards_gradients(&self) -> bool {
        matches!(self.keep, Keep::ShardedGradients | Keep::Sharded)
    }

    /// The number of elements that this rank updates.
    pub fn trained_len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.range.len()).sum()
    }

    /// The reduced gradient of a piece: from this rank's part, or from the whole gradient.
    pub fn grad_of(&mut self, range: &Range<usize>) -> Result<&mut [F]> {
        match self.shards_gradients() {
            true => Ok(&mut self.grad_part[range.start - self.own.start..range.end - self.own.start]),
            false => Ok(&mut self.grads.here_mut("gradients")?[range.clone()]),
        }
    }

    /// The whole gradient, with zeros where nothing is trained.
    pub fn whole_grad(&mut self) -> Result<&[F]> {
        let grads = self.grads.here_mut("gradients")?;
        let mut end = 0;
        for Piece { range, .. } in &self.pieces {
            grads[end..range.start].fill(F::ZERO);
            end = range.end;
        }
        grads[end..].fill(F::ZERO);
        Ok(grads)
    }

    /// Moves the parameters of every piece.
    pub fn step(&mut self, lr: f64) -> Result<()> {
        self.each_piece(|piece, params, grads| piece.optimiser.step(lr, params, grads))
    }

    /// Calls `then` with every piece, its parameters and their gradients.
    pub fn each_piece(&mut self, mut then: impl FnMut(&mut Piece<F>, &mut [F], &[F])) -> Result<()> {
        let (own, shards) = (self.own.start, self.shards_gradients());
        for piece in &mut self.pieces {
            let (range, part) = (piece.range.clone(), piece.range.start - own..piece.range.end - own);
            let params = match self.keep {
                Keep::Sharded => &mut self.param_part[part.clone()],
                _ => &mut self.params.here_mut("parameters")?[range.clone()],
            };
            let grads = match shards {
                true => &self.grad_part[part],
                false => &self.grads.here("gradients")?[range],
            };
            then(piece, params, grads);
        }
        Ok(())
    }

    /// Bytes of parameters, gradients and optimiser state.
    pub fn bytes(&mut self) -> [u64; 3] {
        let bytes = |elements: usize| (elements * size_of::<F>()) as u64;
        let state = self.pieces.iter_mut().flat_map(|piece| piece.optimiser.state().vectors);
        [
            bytes(self.params.len() + self.param_part.len()),
            bytes(self.grads.len() + self.grad_part.len() + self.summing.as_ref().map_or(0, |sum| sum.1)),
            bytes(state.map(|(_, values)| values.len()).sum()),
        ]
    }
}

/// The parameters within a range of a unit, with offsets from the start of that range.
fn specs(params: &[ParamSpec], values: &Range<usize>, range: &Range<usize>) -> Vec<ParamSpec> {
    let (start, end) = (values.start + range.start, values.start + range.end);
    let inside = params.iter().filter(|place| place.range.start < end && start < place.range.end);
    let shifted = inside.map(|place| {
        let range = place.range.start.max(start) - start..place.range.end.min(end) - start;
        ParamSpec { range, ..place.clone() }
    });
    shifted.collect()
}
