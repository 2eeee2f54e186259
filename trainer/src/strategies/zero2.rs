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
    reducing: Option<(usize, bool)>,
    units: Vec<usize>,
}

impl DataSharing for Zero2 {
    fn keep(&self) -> Keep {
        Keep::ShardedGradients
    }

    fn ready(&mut self, on: &mut dyn RankEngine, unit: usize, last: bool) -> Result<()> {
        reduced(on, &mut self.reducing)?;
        on.start(UnitExchange::ReduceScatterGrad, unit)?;
        self.reducing = Some((unit, last));
        if last {
            self.units.push(unit);
        }
        Ok(())
    }

    fn update(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        reduced(on, &mut self.reducing)?;
        on.update()?;
        let units = std::mem::take(&mut self.units);
        units.iter().try_for_each(|unit| on.start(UnitExchange::GatherParams, *unit))?;
        units.iter().try_for_each(|unit| on.finish(UnitExchange::GatherParams, *unit))
    }
}

/// Waits for the reduction of a unit's gradient in progress. The last one of the step starts the unit's sum over copies that are sharded.
pub(super) fn reduced(on: &mut dyn RankEngine, reducing: &mut Option<(usize, bool)>) -> Result<()> {
    let Some((unit, last)) = reducing.take() else { return Ok(()) };
    on.finish(UnitExchange::ReduceScatterGrad, unit)?;
    if last { on.start_replica_sum(unit) } else { Ok(()) }
}
