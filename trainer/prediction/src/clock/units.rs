//! The sizes of the tensors of a rank's units: parameters and gradients, whole or in part, and free buffers of whole units.

use allfold_trainer::engine::{FreeBuffers, Keep, UnitLayout};

/// The elements of a unit, of its whole tensors and of its part of the gradient: 0 while these do not exist.
struct UnitBuffers {
    keep: Keep,
    padded: usize,
    own: usize,
    params: usize,
    grads: usize,
    grad_part: usize,
}

/// All units of a rank.
pub(super) struct UnitSizes {
    units: Vec<UnitBuffers>,
    free: FreeBuffers<usize>,
    /// Elements of all parameters, and of all gradients.
    pub params: usize,
    pub grads: usize,
}

impl UnitSizes {
    /// The units before the first step, with parameters and without gradients.
    pub fn new<'u>(units: impl Iterator<Item = (Keep, &'u UnitLayout)>) -> UnitSizes {
        let mut all = UnitSizes { units: Vec::new(), free: FreeBuffers::default(), params: 0, grads: 0 };
        for (keep, layout) in units {
            let (padded, own) = (layout.padded, layout.own.len());
            let params = if matches!(keep, Keep::Nothing | Keep::Sharded) { 0 } else { padded };
            all.params += if keep == Keep::Sharded { own } else { params };
            all.units.push(UnitBuffers { keep, padded, own, params, grads: 0, grad_part: 0 });
        }
        all
    }

    /// Elements of free buffers.
    pub fn free(&self) -> usize {
        self.free.elements(|elements| *elements)
    }

    /// A buffer for a whole unit: a free one of this size, or a new one.
    fn take(&mut self, unit: usize) -> usize {
        let padded = self.units[unit].padded;
        self.free.take(|free| *free == padded).unwrap_or(padded)
    }

    /// Gathers the parameters of a unit.
    pub fn gather(&mut self, unit: usize) {
        if self.units[unit].keep == Keep::Sharded {
            let whole = self.take(unit);
            self.params = self.params + whole - std::mem::replace(&mut self.units[unit].params, whole);
        }
    }

    /// Frees the whole parameters of a unit of which the rank keeps a part.
    pub fn release(&mut self, unit: usize) {
        if self.units[unit].keep == Keep::Sharded && self.units[unit].params > 0 {
            let whole = std::mem::take(&mut self.units[unit].params);
            self.params -= whole;
            self.free.put(whole);
        }
    }

    /// Allocates a unit's whole gradient unless it exists. Returns whether it was allocated.
    pub fn use_gradient(&mut self, unit: usize) -> bool {
        if self.units[unit].grads > 0 {
            return false;
        }
        let whole = self.take(unit);
        self.units[unit].grads = whole;
        self.grads += whole;
        true
    }

    /// After the reduction of a unit's gradient: frees the whole and keeps the rank's part, if the rank keeps only a part.
    pub fn reduced(&mut self, unit: usize) {
        if matches!(self.units[unit].keep, Keep::ShardedGradients | Keep::Sharded) {
            let whole = std::mem::take(&mut self.units[unit].grads);
            self.grads -= whole;
            self.free.put(whole);
            self.keep_part(unit);
        }
    }

    /// Frees the copy of a rank's part that was summed, if the rank keeps the whole gradient.
    pub fn summed(&mut self, unit: usize) {
        if self.units[unit].keep == Keep::ShardedState {
            self.grads -= std::mem::take(&mut self.units[unit].grad_part);
        }
    }

    /// Keeps the rank's part of the gradient.
    pub fn keep_part(&mut self, unit: usize) {
        let UnitBuffers { own, grad_part, .. } = &mut self.units[unit];
        self.grads = self.grads + *own - std::mem::replace(grad_part, *own);
    }
}
