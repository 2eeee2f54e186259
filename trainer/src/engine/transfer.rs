//! The way of weights and optimiser state between a whole model and the ranks' units: at a run's start, for evaluations and for
//! checkpoints.

use super::unit::Tensor;
use super::worker::Worker;
use super::{Keep, MeshAxis, RankEngine, UnitExchange};
use crate::optim::Optimiser;
use crate::{MemoryUse, ParamLayout, Result};
use allfold_collectives::{Rank, ReduceOp};
use allfold_kernels::nn::Float;
use std::borrow::Cow;

impl<F: Float> Worker<'_, F> {
    /// Takes what this rank keeps of a whole model's parameters, buffers and optimiser state.
    pub fn upload(&mut self, params: &[F], buffers: &[F], optimiser: &mut dyn Optimiser<F>) -> Result<()> {
        self.buffers.copy_from_slice(buffers);
        let layout = self.layout();
        let own = |whole| match &layout {
            None => Cow::Borrowed(whole),
            Some(layout) => Cow::Owned(layout.take(whole)),
        };
        let params = own(params);
        let state = optimiser.state();
        let vectors = state.vectors.iter().map(|(_, whole)| match whole.is_empty() {
            true => Cow::Borrowed(&[][..]),
            false => own(whole),
        });
        let vectors: Vec<Cow<[F]>> = vectors.collect();
        for at in 0..self.units.len() {
            if self.units[at].keep == Keep::Nothing {
                continue;
            }
            let values = &params[self.units[at].values.clone()];
            if self.units[at].keep == Keep::Sharded {
                let unit = &mut self.units[at];
                let part = |element: usize| values.get(element).copied().unwrap_or(F::ZERO);
                unit.param_part = unit.own.clone().map(part).collect();
            } else {
                let mut whole = self.room(self.units[at].padded);
                whole[..values.len()].copy_from_slice(values);
                whole[values.len()..].fill(F::ZERO);
                self.units[at].params = Tensor::Here(whole);
            }
            let start = self.units[at].values.start;
            for piece in &mut self.units[at].pieces {
                let mine = piece.optimiser.state();
                *mine.steps = *state.steps;
                for ((_, to), from) in mine.vectors.into_iter().zip(&vectors) {
                    to.clear();
                    if !from.is_empty() {
                        to.extend_from_slice(&from[start + piece.range.start..start + piece.range.end]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Where this rank's elements lie among all parameters, unless it has all.
    fn layout(&self) -> Option<ParamLayout> {
        Some(self.split.tensor.as_ref()?.layout(self.position(MeshAxis::Tensor).index))
    }

    /// Gives every rank all parameters and buffers; running statistics are those of the first rank of each data axis. Every rank
    /// must call it.
    pub fn download(&mut self, params: &mut Vec<F>, buffers: &mut Vec<F>) -> Result<()> {
        let Some(split) = self.split.tensor.clone() else { return self.download_part(params, buffers) };
        let mut own = Vec::new();
        self.download_part(&mut own, buffers)?;
        let index = self.position(MeshAxis::Tensor).index;
        for rank in 0..split.size() {
            let layout = split.layout(rank);
            let mut part = if rank == index { own.clone() } else { vec![F::ZERO; layout.part()] };
            if let Some(tensor) = &self.groups.tensor {
                tensor.broadcast(&mut part, Rank(rank as u32))?;
            }
            params.resize(layout.whole(), F::ZERO);
            layout.put(0, &part, params);
        }
        Ok(())
    }

    /// Gives every rank the parameters of its place on the tensor axis, and all buffers.
    fn download_part(&mut self, params: &mut Vec<F>, buffers: &mut Vec<F>) -> Result<()> {
        params.resize(self.network.param_count(), F::ZERO);
        if self.groups.serving_role().servers > 0 {
            return self.download_served(params, buffers);
        }
        self.groups.data().broadcast(&mut self.buffers, Rank(0))?;
        for at in 0..self.units.len() {
            let values = self.units[at].values.clone();
            if self.units[at].keep != Keep::Nothing {
                if self.units[at].keep == Keep::First {
                    self.broadcast(at)?;
                }
                if self.units[at].keep == Keep::Sharded {
                    self.start(UnitExchange::GatherParams, at)?;
                    self.finish(UnitExchange::GatherParams, at)?;
                }
                let whole = self.units[at].params.here("parameters")?;
                params[values.clone()].copy_from_slice(&whole[..values.len()]);
                self.release(at);
            }
            if let Some(pipeline) = &self.groups.pipeline {
                let holder = Rank(self.holders[at]);
                pipeline.broadcast(&mut params[values], holder)?;
                for layer in self.specs[at].layers.clone() {
                    let range = self.network.buffers_of(layer);
                    pipeline.broadcast(&mut self.buffers[range], holder)?;
                }
            }
        }
        buffers.clear();
        buffers.extend_from_slice(&self.buffers);
        Ok(())
    }

    /// Gives every rank the whole state of the optimiser. Every rank must call it.
    pub fn download_state(&mut self, optimiser: &mut dyn Optimiser<F>) -> Result<()> {
        let state = optimiser.state();
        let layout = self.layout();
        let all = layout.as_ref().map_or_else(|| self.network.param_count(), ParamLayout::whole);
        let mut steps = [0i64];
        for (number, (_, whole)) in state.vectors.into_iter().enumerate() {
            whole.clear();
            whole.resize(all, F::ZERO);
            let mut kept = [0i64];
            for at in 0..self.units.len() {
                let (counts, unit) = (self.counts_here(at), &mut self.units[at]);
                let start = unit.values.start;
                for piece in &mut unit.pieces {
                    let mine = piece.optimiser.state();
                    steps[0] = *mine.steps as i64;
                    let (_, values) = &mine.vectors[number];
                    if counts && piece.counts && !values.is_empty() {
                        kept[0] = 1;
                        let range = start + piece.range.start..start + piece.range.end;
                        match &layout {
                            None => whole[range].copy_from_slice(values),
                            Some(layout) => layout.put(range.start, values, whole),
                        }
                    }
                }
            }
            self.groups.world.all_reduce(&mut kept, ReduceOp::Max)?;
            match kept {
                [0] => whole.clear(),
                _ => self.groups.world.all_reduce(whole, ReduceOp::Sum)?,
            }
        }
        self.groups.world.all_reduce(&mut steps, ReduceOp::Max)?;
        *state.steps = steps[0].unsigned_abs();
        Ok(())
    }

    /// The memory that this rank holds now.
    pub fn memory(&mut self) -> MemoryUse {
        let [activations, saved_for_backward, activation_gradients] = self.activation_bytes();
        let mut memory = MemoryUse {
            buffers: (self.buffers.len() * size_of::<F>()) as u64,
            activations,
            saved_for_backward,
            activation_gradients,
            buckets: self.spare_bytes(),
            ..MemoryUse::default()
        };
        for unit in &mut self.units {
            let [params, gradients, optimiser] = unit.bytes();
            memory.params += params;
            memory.gradients += gradients;
            memory.optimiser += optimiser;
        }
        memory
    }
}
