//! Replicas: every rank keeps all of a unit, and gradients are averaged during the backward pass.
//!
//! ```text
//! compute        | forward .. | backward unit 2 | unit 1   | unit 0   |......| step |
//! communication                          | all-reduce 2 | 1     | 0       |
//! ```

use super::driver::DataSharing;
use crate::Result;
use crate::engine::{Keep, RankEngine, UnitExchange};

/// Gradients averaged by all-reduce, once per step.
#[derive(Default)]
pub struct Replicated {
    reducing: Vec<usize>,
}

impl DataSharing for Replicated {
    fn keep(&self) -> Keep {
        Keep::Whole
    }

    fn ready(&mut self, on: &mut dyn RankEngine, unit: usize, last: bool) -> Result<()> {
        if last {
            on.start(UnitExchange::AllReduceGrad, unit)?;
            self.reducing.push(unit);
        }
        Ok(())
    }

    fn update(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        self.reducing.drain(..).try_for_each(|unit| on.finish(UnitExchange::AllReduceGrad, unit))?;
        on.update()
    }
}
