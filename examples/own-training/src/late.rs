//! Data parallelism without overlap: the gradients of all units are exchanged after the backward pass. `allfold compare`
//! compares it with strategies that overlap, which shows what overlap gains.

use allfold_trainer::engine::{Keep, Mesh, RankEngine, UnitExchange};
use allfold_trainer::strategies::{DataSharing, EnginePlan, Plain};
use allfold_trainer::{Config, Result};

#[derive(Default)]
struct Late {
    ready: Vec<usize>,
}

impl DataSharing for Late {
    fn keep(&self) -> Keep {
        Keep::Whole
    }

    fn ready(&mut self, _on: &mut dyn RankEngine, unit: usize, last: bool) -> Result<()> {
        if last {
            self.ready.push(unit);
        }
        Ok(())
    }

    fn update(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        for unit in self.ready.drain(..) {
            on.start(UnitExchange::AllReduceGrad, unit)?;
            on.finish(UnitExchange::AllReduceGrad, unit)?;
        }
        on.update()
    }
}

/// The plan of every rank: all of them have samples of their own.
pub fn plan(config: &Config, _rank: usize, ranks: u32) -> Result<EnginePlan> {
    let driver = Plain { sharing: Box::new(Late::default()), micro_batches: config.training.accumulate };
    Ok(EnginePlan { mesh: Mesh::of_data(1, ranks)?, channels: 0, driver: Box::new(driver) })
}
