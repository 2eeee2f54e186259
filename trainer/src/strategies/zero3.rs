//! ZeRO stage 3, which PyTorch calls fully sharded data parallel: parameters, gradients and optimiser state are cut into parts
//! over the data axis (S. Rajbhandari et al., SC 2020; Y. Zhao et al., "PyTorch FSDP", VLDB 2023).
//!
//! ```text
//! forward and backward:   | gather 0 | gather 1 | gather 2 |
//!                                    | unit 0   | unit 1   | unit 2 ..      a unit is freed when the pass leaves it
//! backward, also:         reduce-scatter of each unit's gradient; a rank adds its part to what it keeps
//! step:                   each rank updates its part; nothing is gathered
//! ```
//!
//! A rank sends 3 (n-1)/n of the parameters' bytes in a step; 2 (n-1)/n where units stay whole after the forward pass.

use super::driver::DataSharing;
use super::zero2::reduced;
use crate::Result;
use crate::engine::{Keep, RankEngine, UnitExchange};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// ZeRO stage 3: parameters, gradients and optimiser state in parts.
pub struct Zero3 {
    /// Whether a unit is freed after its forward pass and gathered again for its backward pass.
    pub reshard_after_forward: bool,
    /// The units whose parameters are complete or are being gathered, each with whether the gather has been waited for.
    open: BTreeMap<usize, bool>,
    reducing: Option<(usize, bool)>,
}

impl Zero3 {
    /// ZeRO stage 3 in which a unit is freed after its forward pass (`true`) or kept until after its backward pass.
    pub fn new(reshard_after_forward: bool) -> Zero3 {
        Zero3 { reshard_after_forward, open: BTreeMap::new(), reducing: None }
    }

    fn gather(&mut self, on: &mut dyn RankEngine, unit: usize) -> Result<()> {
        if let Entry::Vacant(closed) = self.open.entry(unit) {
            on.start(UnitExchange::GatherParams, unit)?;
            closed.insert(false);
        }
        Ok(())
    }
}

impl DataSharing for Zero3 {
    fn keep(&self) -> Keep {
        Keep::Sharded
    }

    fn need(&mut self, on: &mut dyn RankEngine, unit: usize, ahead: Option<usize>) -> Result<()> {
        self.gather(on, unit)?;
        if let Some(next) = ahead {
            self.gather(on, next)?;
        }
        match self.open.insert(unit, true) {
            Some(true) => Ok(()),
            _ => on.finish(UnitExchange::GatherParams, unit),
        }
    }

    fn done(&mut self, on: &mut dyn RankEngine, unit: usize, forward: bool) {
        if !forward || self.reshard_after_forward {
            self.open.remove(&unit);
            on.release(unit);
        }
    }

    fn ready(&mut self, on: &mut dyn RankEngine, unit: usize, last: bool) -> Result<()> {
        reduced(on, &mut self.reducing)?;
        on.start(UnitExchange::ReduceScatterGrad, unit)?;
        self.reducing = Some((unit, last));
        Ok(())
    }

    fn update(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        reduced(on, &mut self.reducing)?;
        on.update()
    }
}
