//! ZeRO stage 2: optimiser state and gradients are cut into parts over the data axis (S. Rajbhandari et al., SC 2020).
//!
//! ```text
//! backward:   reduce-scatter of a unit's gradient as soon as it is complete; a rank adds its part to what it keeps, and
//!             frees the whole: two units have a whole gradient at a time, the one that is computed and the one that is reduced
//! step:       each rank updates its part
//! after:      all-gather of each unit's parameters
//! ```
//!
//! Gradients are reduced after every micro-batch, because ranks keep no whole gradients.

use super::driver::DataSharing;
use crate::Result;
use crate::engine::{Keep, RankEngine, UnitExchange};

/// ZeRO stage 2: optimiser state and gradients in parts.
#[derive(Default)]
pub struct Zero2 {
    reducing: Option<usize>,
    units: Vec<usize>,
}

impl Zero2 {
    fn reduced(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        match self.reducing.take() {
            Some(unit) => on.finish(UnitExchange::ReduceScatterGrad, unit),
            None => Ok(()),
        }
    }
}

impl DataSharing for Zero2 {
    fn keep(&self) -> Keep {
        Keep::ShardedGradients
    }

    fn ready(&mut self, on: &mut dyn RankEngine, unit: usize, last: bool) -> Result<()> {
        self.reduced(on)?;
        on.start(UnitExchange::ReduceScatterGrad, unit)?;
        self.reducing = Some(unit);
        if last {
            self.units.push(unit);
        }
        Ok(())
    }

    fn update(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        self.reduced(on)?;
        on.update()?;
        let units = std::mem::take(&mut self.units);
        units.iter().try_for_each(|unit| on.start(UnitExchange::GatherParams, *unit))?;
        units.iter().try_for_each(|unit| on.finish(UnitExchange::GatherParams, *unit))
    }
}
