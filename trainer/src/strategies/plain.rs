//! The whole network on every rank, one micro-batch after another.

use super::driver::{DataSharing, Driver, PassDirection, finish, pass, units_of};
use crate::engine::{ParamUnit, RankEngine, Slot};
use crate::{Outline, Result};

/// The driver of a strategy in which every rank runs every layer; `sharing` decides what ranks keep of the layers.
pub struct Plain {
    /// Decides what happens to units over the data axis.
    pub sharing: Box<dyn DataSharing>,
    /// The number of micro-batches of a step.
    pub micro_batches: usize,
}

impl Driver for Plain {
    fn units(&self, outline: &Outline) -> Result<Vec<ParamUnit>> {
        let all = 0..outline.layers();
        let blocks = if self.sharing.is_one_unit() { vec![all] } else { outline.blocks(&all) };
        Ok(units_of(&blocks, self.sharing.keep()))
    }

    fn start(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        self.sharing.start(on)
    }

    fn step(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        let outline = on.outline();
        let (forward, backward) = (outline.forward(&(0..outline.layers())), outline.announced());
        self.sharing.begin(on)?;
        let of = on.micro_batches(self.micro_batches);
        for micro in 0..of {
            let last = micro + 1 == of;
            on.load(micro, self.micro_batches, Slot(0))?;
            pass(on, &mut *self.sharing, (&forward, &[]), Slot(0), PassDirection::Forward)?;
            pass(on, &mut *self.sharing, (backward, &[]), Slot(0), PassDirection::Backward { last })?;
        }
        on.forget(Slot(0));
        finish(on, &mut *self.sharing)
    }
}
