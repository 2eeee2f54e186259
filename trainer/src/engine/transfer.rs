//! The transfer of weights and optimiser state between a whole model and the ranks' units: at a run's start, for evaluations and
//! for checkpoints.

use super::bucketing::BucketState;
use super::unit::{Piece, Tensor};
use super::worker::Worker;
use super::{Keep, MeshAxis, RankEngine, UnitExchange};
use crate::optim::Optimiser;
use crate::{Error, MemoryUse, ParamLayout, Result};
use allfold_collectives::{Buffer, Communicator, Rank, ReduceOp};
use allfold_kernels::nn::Float;
use std::borrow::Cow;

/// A rank's part of `whole`, values of the whole network; `layout` is `None` if the rank has all. Empty if `whole` is empty.
pub(crate) fn part_of<'v, F: Float>(whole: &'v [F], layout: Option<&ParamLayout>) -> Cow<'v, [F]> {
    match layout {
        Some(layout) if !whole.is_empty() => Cow::Owned(layout.take(whole)),
        _ => Cow::Borrowed(whole),
    }
}

/// Puts the values of the whole network into `whole`: those of this rank, number `index` of `group`, and those of the other ranks, with
/// these layouts. Every rank of the group must call it.
pub(crate) fn share_parts<F: Float>(
    (group, index): (Option<&Communicator>, usize),
    layouts: Vec<ParamLayout>,
    own: &[F],
    whole: &mut [F],
) -> Result<()> {
    for (rank, layout) in layouts.into_iter().enumerate() {
        let mut part = if rank == index { own.to_vec() } else { vec![F::ZERO; layout.part()] };
        if let Some(group) = group {
            group.broadcast(&mut part, Rank(rank as u32))?;
        }
        layout.put(0, &part, whole);
    }
    Ok(())
}

impl<F: Float> Worker<'_, F> {
    /// Copies the parts that this rank keeps from a whole model's parameters, buffers and optimiser state.
    pub fn upload(&mut self, params: &[F], buffers: &[F], optimiser: &mut dyn Optimiser<F>) -> Result<()> {
        self.buffers.copy_from_slice(buffers);
        let layout = self.layout();
        let params = part_of(params, layout.as_ref());
        let state = optimiser.state();
        let vectors = state.vectors.iter().map(|(_, whole)| part_of(whole, layout.as_ref()));
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
                // With `Keep::Whole` no other rank reads the buffer, so it need not be registered.
                let elements = self.units[at].padded;
                let mut whole = match self.units[at].keep {
                    Keep::Whole => Buffer::zeroed(elements),
                    _ => self.whole_unit_buffer(elements),
                };
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

    /// The layout of this rank's elements among all parameters; `None` if the rank has all.
    pub(super) fn layout(&self) -> Option<ParamLayout> {
        let (axis, mut layouts) = self.split.parts()?;
        Some(layouts.swap_remove(self.place.position(axis).index))
    }

    /// Gives every rank all parameters and buffers; running statistics are those of the first rank of each data axis. Every rank
    /// must call it.
    pub fn download(&mut self, params: &mut Vec<F>, buffers: &mut Vec<F>) -> Result<()> {
        let Some((axis, layouts)) = self.split.parts() else { return self.download_part(params, buffers) };
        let mut own = Vec::new();
        self.download_part(&mut own, buffers)?;
        params.resize(layouts.first().map_or(0, ParamLayout::whole), F::ZERO);
        share_parts((self.groups.along(axis), self.place.position(axis).index), layouts, &own, params)
    }

    /// Gives every rank the parameters of its position on the tensor or expert axis, and all buffers.
    fn download_part(&mut self, params: &mut Vec<F>, buffers: &mut Vec<F>) -> Result<()> {
        params.resize(self.network.param_count(), F::ZERO);
        if self.place.role().servers > 0 {
            return self.download_served(params, buffers);
        }
        self.share_buffers()?;
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
            if let Some(pipeline) = self.groups.along(MeshAxis::Pipeline) {
                pipeline.broadcast(&mut params[values], self.groups.holder(at))?;
            }
        }
        buffers.clear();
        buffers.extend_from_slice(&self.buffers);
        Ok(())
    }

    /// Gives every rank the running statistics of the first rank of each data axis; with servers, of the first worker.
    pub(super) fn share_buffers(&mut self) -> Result<()> {
        let servers = self.place.role().servers as u32;
        if servers > 0 {
            return Ok(self.groups.world.broadcast(&mut self.buffers, Rank(servers))?);
        }
        self.groups.data().broadcast(&mut self.buffers, Rank(0))?;
        let Some(pipeline) = self.groups.along(MeshAxis::Pipeline) else { return Ok(()) };
        for (at, spec) in self.place.units.iter().enumerate() {
            for layer in spec.layers.clone() {
                let range = self.network.buffers_of(layer);
                pipeline.broadcast(&mut self.buffers[range], self.groups.holder(at))?;
            }
        }
        Ok(())
    }

    /// Gives every rank the whole optimiser state: its own, if every rank keeps the whole. Every rank must call it.
    pub fn download_state(&mut self, optimiser: &mut dyn Optimiser<F>) -> Result<()> {
        let state = optimiser.state();
        let (layout, has_all) = (self.layout(), self.has_all());
        let all = layout.as_ref().map_or_else(|| self.network.param_count(), ParamLayout::whole);
        let mut steps = [0i64];
        for (number, (_, whole)) in state.vectors.into_iter().enumerate() {
            whole.clear();
            whole.resize(all, F::ZERO);
            let mut kept = [0i64];
            for at in 0..self.units.len() {
                let (counts, unit) = (has_all || self.counts_here(at), &mut self.units[at]);
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
            if !has_all {
                self.groups.world.all_reduce(&mut kept, ReduceOp::Max)?;
            }
            match kept {
                [0] => whole.clear(),
                _ if has_all => {}
                _ => self.groups.world.all_reduce(whole, ReduceOp::Sum)?,
            }
        }
        if !has_all {
            self.groups.world.all_reduce(&mut steps, ReduceOp::Max)?;
        }
        *state.steps = steps[0].unsigned_abs();
        Ok(())
    }

    /// The gradients of the last step in the layout of the parameters, 0 for those that are not trained.
    ///
    /// # Errors
    /// Gradients that this rank does not keep whole.
    pub fn gradients(&self) -> Result<Vec<F>> {
        if !self.has_all() {
            return Err(Error::Strategy(
                "this rank keeps a part of the gradients; ddp keeps them whole".into(),
            ));
        }
        let mut all = vec![F::ZERO; self.network.param_count()];
        for unit in self.units.iter() {
            let grads = unit.grads.here("gradients")?;
            for Piece { range, .. } in &unit.pieces {
                let start = unit.values.start;
                all[start + range.start..start + range.end].copy_from_slice(&grads[range.clone()]);
            }
        }
        Ok(all)
    }

    /// The memory that this rank holds now.
    pub fn memory(&mut self) -> MemoryUse {
        let [activations, saved_for_backward, activation_gradients] = self.activation_bytes();
        let [gradients, buckets] = self.bucketing.as_ref().map_or([0; 2], BucketState::bytes);
        let mut memory = MemoryUse {
            gradients,
            buffers: (self.buffers.len() * size_of::<F>()) as u64,
            activations,
            saved_for_backward,
            activation_gradients,
            buckets: self.spare_bytes() + buckets,
            ..MemoryUse::default()
        };
        for unit in self.units.iter_mut() {
            let [params, gradients, optimiser] = unit.bytes();
            memory.params += params;
            memory.gradients += gradients;
            memory.optimiser += optimiser;
        }
        memory
    }
}
