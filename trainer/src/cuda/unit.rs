//! A unit's memory on a device: parameters, gradients, and this rank's parts of them.
//!
//! | kept | parameters | gradients | state |
//! |---|---|---|---|
//! | whole | whole | whole | whole |
//! | sharded state | whole | whole | a part |
//! | sharded gradients | whole | a part, and the whole from its first weight gradient until it is reduced | a part |
//! | sharded | a part, and the whole from its gather until its release | as above | a part |
//! | a copy | whole | whole | none |
//! | nothing | none | none | none |
//!
//! Whole tensors that exist for a part of a step only are allocated from the compute queue's pool. The stream of the exchanges uses them
//! too: an exchange begins after the work that the compute queue has so far, and the compute queue waits for the exchange before the memory
//! is returned.

use super::spans::{mark, part, zeroed};
use crate::Result;
use crate::engine::{AxisPosition, Keep, UnitExchange};
use allfold_cuda::{Mark, Memory, Queue, Slice, launch};
use allfold_kernels::DType;
use std::ops::Range;
use std::sync::Arc;

/// The memory of a unit. Elements are numbered from its first parameter on, with gaps between parameters for alignment, and with padding so
/// that they divide into equal parts.
pub(super) struct UnitMemory {
    pub keep: Keep,
    /// Whether its parameters are those of some experts.
    pub some_experts: bool,
    /// The number of elements of the whole.
    pub elements: usize,
    /// The elements of this rank's part; all of them if the rank keeps the whole.
    pub own: Range<usize>,
    /// The number of elements of the whole gradient, which has a layout of its own where it is exchanged in buckets.
    pub graded: usize,
    /// The whole parameters in f32, and in the narrow type of autocast.
    pub params: Option<Arc<Memory>>,
    pub narrow: Option<Arc<Memory>>,
    pub param_part: Option<Arc<Memory>>,
    pub grads: Option<Arc<Memory>>,
    pub grad_part: Option<Arc<Memory>>,
    /// Whether `grad_part` has a gradient of this step.
    pub part_begun: bool,
    /// The end of a gather, and of an exchange of the gradient.
    gathered: Option<Mark>,
    reduced: Option<Mark>,
    /// Whether a gather is in progress; and the exchange of the gradient that is in progress.
    pub gathering: bool,
    pub reducing: Option<UnitExchange>,
}

impl UnitMemory {
    /// A unit of `elements` elements, without memory yet: of some experts' parameters or of other parameters. This rank's part is number
    /// `index` of `size`.
    pub fn new(
        (keep, some_experts): (Keep, bool),
        elements: usize,
        AxisPosition { index, size }: AxisPosition,
    ) -> UnitMemory {
        let part = elements / size;
        let own = match keep {
            Keep::Whole => 0..elements,
            Keep::First if index == 0 => 0..elements,
            Keep::First | Keep::Nothing | Keep::Copy => 0..0,
            _ => index * part..(index + 1) * part,
        };
        UnitMemory {
            keep,
            some_experts,
            elements,
            own,
            graded: elements,
            params: None,
            narrow: None,
            param_part: None,
            grads: None,
            grad_part: None,
            part_begun: false,
            gathered: None,
            reduced: None,
            gathering: false,
            reducing: None,
        }
    }

    /// The parts of `servers` servers.
    pub fn parts(&self, servers: usize) -> Vec<Range<usize>> {
        let part = self.elements / servers.max(1);
        (0..servers).map(|server| server * part..(server + 1) * part).collect()
    }

    /// Allocates what the rank keeps between steps, filled with zeros, with a copy of the parameters in `narrow`.
    pub fn allocate(&mut self, queue: &Queue, narrow: Option<DType>) -> Result<()> {
        if self.keep == Keep::Nothing {
            return Ok(());
        }
        let zeros = |bytes: usize| zeroed(queue, bytes).map(|memory| Some(Arc::new(memory)));
        if self.keep == Keep::Sharded {
            self.param_part = zeros(4 * self.own.len())?;
        } else {
            self.params = zeros(4 * self.elements)?;
            self.narrow = narrow.map_or(Ok(None), |narrow| zeros(self.elements * narrow.size()))?;
        }
        if self.shards_gradients() {
            self.grad_part = zeros(4 * self.own.len())?;
        } else {
            self.grads = zeros(4 * self.graded)?;
        }
        Ok(())
    }

    /// Whether this rank keeps a part of the gradient only.
    pub fn shards_gradients(&self) -> bool {
        matches!(self.keep, Keep::ShardedGradients | Keep::Sharded)
    }

    /// The memory that holds this rank's part of the parameters, and the part's offset there.
    pub fn own_params(&self) -> (Option<&Arc<Memory>>, usize) {
        match self.keep {
            Keep::Sharded => (self.param_part.as_ref(), self.own.start),
            _ => (self.params.as_ref(), 0),
        }
    }

    /// The memory that holds this rank's part of the reduced gradient, and the part's offset there.
    pub fn own_grads(&self) -> (Option<&Arc<Memory>>, usize) {
        match self.shards_gradients() {
            true => (self.grad_part.as_ref(), self.own.start),
            false => (self.grads.as_ref(), 0),
        }
    }

    /// This rank's part of the reduced gradient; the whole if the rank keeps the whole, `None` if the rank has none.
    pub fn reduced_grad(&self) -> Result<Option<Slice<'_>>> {
        match (&self.grads, &self.grad_part) {
            (_, Some(own)) => Ok(Some(own.all())),
            (Some(whole), _) if self.keep == Keep::Whole => Ok(Some(whole.all())),
            (Some(_), _) if self.own.is_empty() => Ok(None),
            (Some(whole), _) => Ok(Some(part(whole.all(), &self.own, 4)?)),
            (None, None) => Ok(None),
        }
    }

    /// Allocates the whole gradient, filled with zeros, unless it exists. Returns whether it was allocated.
    pub fn allocate_grads(&mut self, queue: &Queue) -> Result<bool> {
        let absent = self.grads.is_none();
        if absent {
            let grads = queue.memory(4 * self.graded)?;
            queue.fill(grads.all(), 0)?;
            self.grads = Some(Arc::new(grads));
        }
        Ok(absent)
    }

    /// Memory for the whole parameters, with this rank's part in its place.
    pub fn whole_params(&self, queue: &Queue) -> Result<Memory> {
        let whole = queue.memory(4 * self.elements)?;
        if let Some(own) = &self.param_part {
            queue.copy(part(whole.all(), &self.own, 4)?, own.all())?;
        }
        Ok(whole)
    }

    /// After the reduction of the gradient: stores this rank's part, or adds it to that of earlier micro-batches, and frees the whole.
    pub fn keep_part(&mut self, queue: &Queue) -> Result<()> {
        let Some(own) = &self.grad_part else { return Ok(()) };
        let Some(whole) = self.grads.take() else { return Ok(()) };
        let came = part(whole.all(), &self.own, 4)?;
        if std::mem::replace(&mut self.part_begun, true) {
            launch::add(queue, DType::F32, (own.all(), came), own.all())?;
        } else {
            queue.copy(own.all(), came)?;
        }
        Ok(())
    }

    /// Writes the narrow copy of the whole parameters, which is allocated if it does not exist.
    pub fn narrow_params(&mut self, queue: &Queue, narrow: Option<DType>) -> Result<()> {
        let (Some(narrow), Some(params)) = (narrow, &self.params) else { return Ok(()) };
        let copy = match self.narrow.take() {
            Some(copy) => copy,
            None => Arc::new(queue.memory(self.elements * narrow.size())?),
        };
        launch::cast(queue, (DType::F32, params.all()), (narrow, copy.all()), 1.0)?;
        self.narrow = Some(copy);
        Ok(())
    }

    /// Marks the end of a gather (`gather`) or of a reduction on the stream of exchanges.
    pub fn mark(&mut self, gather: bool, exchanges: &Queue) -> Result<()> {
        mark(if gather { &mut self.gathered } else { &mut self.reduced }, exchanges)
    }

    /// Makes `queue` wait for the mark.
    pub fn wait(&self, gather: bool, queue: &Queue) -> Result<()> {
        let mark = if gather { &self.gathered } else { &self.reduced };
        Ok(mark.as_ref().map_or(Ok(()), |mark| queue.wait(mark))?)
    }

    /// The bytes of parameters and of gradients.
    pub fn bytes(&self) -> [u64; 2] {
        let sum = |all: &[&Option<Arc<Memory>>]| all.iter().copied().flatten().map(|m| m.len() as u64).sum();
        [sum(&[&self.params, &self.narrow, &self.param_part]), sum(&[&self.grads, &self.grad_part])]
    }
}
