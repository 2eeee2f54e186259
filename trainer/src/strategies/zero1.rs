//! ZeRO stage 1: the optimiser state is cut into parts over the data axis (S. Rajbhandari et al., "ZeRO: Memory Optimizations
//! Toward Training Trillion Parameter Models", SC 2020).
//!
//! ```text
//! backward:   reduce-scatter of each unit's gradient     a rank gets the mean of its part
//! step:       each rank updates its part                 1/n of the state
//! after:      all-gather of each unit's parameters
//! ```
//!
//! A rank sends 2 (n-1)/n of the parameters' bytes in a step, as an all-reduce does.

use super::driver::DataSharing;
use super::zero2::reduced;
use crate::Result;
use crate::engine::{Keep, MeshAxis, RankEngine, UnitExchange};

/// ZeRO stage 1: optimiser state in parts.
#[derive(Default)]
pub struct Zero1 {
    reducing: Vec<usize>,
}

impl DataSharing for Zero1 {
    fn keep(&self) -> Keep {
        Keep::ShardedState
    }

    fn ready(&mut self, on: &mut dyn RankEngine, unit: usize, last: bool) -> Result<()> {
        if last {
            // Sums over copies that are sharded begin during the backward pass.
            if let Some(before) = self.reducing.last()
                && on.position(MeshAxis::Replica).size > 1
            {
                reduced(on, &mut Some((*before, true)))?;
            }
            on.start(UnitExchange::ReduceScatterGrad, unit)?;
            self.reducing.push(unit);
        }
        Ok(())
    }

    fn update(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        let units = std::mem::take(&mut self.reducing);
        units.iter().try_for_each(|unit| on.finish(UnitExchange::ReduceScatterGrad, *unit))?;
        on.update()?;
        units.iter().try_for_each(|unit| on.start(UnitExchange::GatherParams, *unit))?;
        units.iter().try_for_each(|unit| on.finish(UnitExchange::GatherParams, *unit))
    }
}
