//! The part of a sharded checkpoint that each rank writes.

use super::worker::Worker;
use super::{Keep, MeshAxis};
use crate::Result;
use crate::checkpoint::sharded::Part;
use allfold_collectives::ReduceOp;
use allfold_kernels::nn::Float;
use std::ops::Range;

impl<F: Float> Worker<'_, F> {
    /// What this rank writes of a sharded checkpoint: the parts that it alone holds, and its share of what several ranks hold.
    /// Copies the running statistics to `buffers`. Every rank must call it.
    pub fn part(&mut self, buffers: &mut Vec<F>) -> Result<Part<F>> {
        self.share_buffers()?;
        buffers.clear();
        buffers.extend_from_slice(&self.buffers);
        let layout = self.layout();
        let places = |range: Range<usize>| match &layout {
            Some(layout) => layout.runs_of(range),
            None => vec![range],
        };
        let mut part = Part::empty();
        for at in 0..self.units.len() {
            let mine = self.written_here(at);
            let unit = &mut self.units[at];
            let (start, own) = (unit.values.start, unit.own.start);
            if !mine.is_empty() {
                let values = match unit.keep {
                    Keep::Sharded => &unit.param_part[mine.start - own..mine.end - own],
                    _ => &unit.params.here("parameters")?[mine.clone()],
                };
                part.params.push_all(places(start + mine.start..start + mine.end), values);
            }
            for piece in &mut unit.pieces {
                let state = piece.optimiser.state();
                part.steps = part.steps.max(*state.steps);
                let (from, to) = (piece.range.start.max(mine.start), piece.range.end.min(mine.end));
                let begun = state.vectors.into_iter().filter(|(_, values)| !values.is_empty() && from < to);
                for (name, values) in begun {
                    let values = &values[from - piece.range.start..to - piece.range.start];
                    part.state_of(name).push_all(places(start + from..start + to), values);
                }
            }
        }
        let mut steps = [part.steps as i64];
        self.groups.world.all_reduce(&mut steps, ReduceOp::Max)?;
        part.steps = steps[0].unsigned_abs();
        Ok(part)
    }

    /// The elements of a unit that this rank writes: its part, or an equal share of what the ranks of an axis all have.
    fn written_here(&self, at: usize) -> Range<usize> {
        let (unit, position) = (&self.units[at], |axis| self.place.position(axis));
        let all = unit.values.len();
        match unit.keep {
            _ if !self.counts(at) => 0..0,
            Keep::Nothing | Keep::Copy => 0..0,
            Keep::First if position(MeshAxis::Data).index > 0 => 0..0,
            Keep::First => 0..all,
            Keep::Whole => {
                let place = position(self.place.holders(at));
                place.index * all / place.size..(place.index + 1) * all / place.size
            }
            Keep::ShardedState | Keep::ShardedGradients | Keep::Sharded => {
                let first = position(MeshAxis::Replica).index == 0 || self.place.has_some_experts(at);
                if first { unit.own.start.min(all)..unit.own.end.min(all) } else { 0..0 }
            }
        }
    }
}
