//! The end of a step on a clock: what ranks agree on, and the optimisers' steps.

use super::ClockRank;
use super::Queue;
use crate::ElementPass;
use allfold_collectives::{Collective, DType};
use allfold_sim::Picos;
use allfold_trainer::Result;
use allfold_trainer::engine::{Keep, MeshAxis, RankEngine};
use allfold_trainer::timing::StepWork;

impl ClockRank<'_> {
    /// Advances the clock by the time that `takes` gives for the elements of each unit that this rank updates.
    fn for_each_unit(&mut self, takes: impl Fn(usize) -> Picos) {
        let elements =
            self.units.iter().map(|unit| unit.layout.trained_len()).filter(|elements| *elements > 0);
        let sum = elements.map(takes).fold(Picos::ZERO, |sum, part| sum + part);
        self.clock.does(StepWork::Update, None, sum);
    }

    /// Updates this rank's parameters.
    pub(super) fn move_params(&mut self) -> Result<()> {
        let (rules, costs) = (self.with.rules, self.with.costs);
        if self.with.mesh.pipeline > 1 {
            let line = self.exchanges.along(MeshAxis::Pipeline);
            self.run_collective(line, Collective::AllReduce, 1, DType::F64)?;
        }
        if self.place.is_led {
            let data = self.exchanges.along(MeshAxis::Data);
            self.run_collective(data, Collective::AllReduce, 1, DType::F64)?;
        }
        self.sum_replicas()?;
        if rules.scaler {
            self.for_each_unit(|elements| costs.over(ElementPass::Unscale, elements));
            self.run_collective(Queue::World, Collective::AllReduce, 1, DType::U8)?;
        }
        if rules.clip {
            let alone = self.with.mesh.pipeline == 1 && !rules.parts;
            if !alone || self.units.iter().any(|unit| unit.keep != Keep::Whole) {
                self.run_collective(Queue::World, Collective::AllReduce, 1, DType::F64)?;
            }
            self.for_each_unit(|elements| costs.over(ElementPass::Clip, elements));
        }
        let role = self.place.role();
        let (holders, shares) = match role.servers {
            0 => (Queue::World, rules.parts || self.place.is_cut()),
            servers => (self.exchanges.along(MeshAxis::Data), servers > 1 && role.server.is_some()),
        };
        if rules.norms && shares {
            let squares = 2 * costs.params().len();
            self.run_collective(holders, Collective::AllReduce, squares, DType::F64)?;
        }
        self.for_each_unit(|elements| costs.over(ElementPass::Update, elements));
        Ok(())
    }

    /// Where several copies are sharded, waits until this rank's parts of the gradients are summed over the ranks that hold the same.
    fn sum_replicas(&mut self) -> Result<()> {
        (0..self.units.len()).try_for_each(|unit| self.start_replica_sum(unit))?;
        for unit in 0..self.units.len() {
            if let Some(sum) = self.units[unit].summing.take() {
                self.wait(sum)?;
                self.memory.iter_mut().for_each(|memory| memory.units.summed(unit));
            }
        }
        Ok(())
    }
}
