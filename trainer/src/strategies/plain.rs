//! The whole network on every rank, one micro-batch after another.

use super::driver::{DataSharing, Driver, Way, finish, pass, units_of};
use crate::engine::{ParamUnit, RankEngine, Slot};
use crate::{Outline, Result};

/// Every rank runs every layer; `sharing` says what it keeps of them.
pub struct Plain {
    /// What becomes of units over the data axis.
    pub sharing: Box<dyn DataSharing>,
    /// Micro-batches of a step.
    pub micro_batches: usize,
}

impl Driver for Plain {
    fn units(&self, outline: &Outline) -> Result<Vec<ParamUnit>> {
        Ok(units_of(&outline.blocks(&(0..outline.layers())), self.sharing.keep()))
    }

    fn step(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        let outline = on.outline();
        let layers = 0..outline.layers();
        let (forward, backward) = (outline.forward(&layers), outline.backward(&layers, true));
        let of = on.micro_batches(self.micro_batches);
        for micro in 0..of {
            let last = micro + 1 == of;
            on.load(micro, self.micro_batches, Slot(0))?;
            pass(on, &mut *self.sharing, (&forward, &[]), Slot(0), Way::Forward)?;
            pass(on, &mut *self.sharing, (&backward, &[]), Slot(0), Way::Backward { last })?;
        }
        on.forget(Slot(0));
        finish(on, &mut *self.sharing)
    }
}
