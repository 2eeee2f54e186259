//! The end of a step: one decision about gradients that are not finite, one norm over all ranks, and the optimisers' steps.
//!
//! On virtual time each pass over the gradients of a unit is one operation, as that of a fused optimiser, however many of the unit's
//! parameters are trained.

use super::worker::Worker;
use super::{MeshAxis, RankEngine};
use crate::scaler::{GradScaler, unscale_cost};
use crate::timing::{StepWork, work};
use crate::{Result, optim};
use allfold_collectives::{Rank, ReduceOp};
use allfold_kernels::nn::{Float, norm};

impl<F: Float> Worker<'_, F> {
    /// Updates this rank's parameters. With a loss scale, no rank does if any rank has a gradient that is not finite.
    pub(super) fn move_params(&mut self) -> Result<()> {
        self.share_loss()?;
        self.sum_replicas()?;
        if let Some(scaler) = self.task.scaler {
            let found = self.unscale(&scaler)?;
            let before = self.groups.world.now();
            self.result.skipped = GradScaler::found_anywhere(found, self.groups.world)?;
            self.waited_since(before);
            if self.result.skipped {
                return Ok(());
            }
        }
        if self.config.optimiser.clip_norm > 0.0 {
            self.clip(self.config.optimiser.clip_norm)?;
        }
        self.share_norms()?;
        let before = self.groups.world.now();
        for unit in self.units.iter_mut() {
            unit.step(self.task.input.lr)?;
            if let Some(piece) = unit.pieces.first() {
                self.groups.world.charge(&work(piece.optimiser.cost(unit.trained_len())));
            }
        }
        self.did(StepWork::Update, None, before);
        Ok(())
    }

    /// Where several copies are sharded, waits until this rank's parts of the gradients are summed over the ranks that hold the same.
    fn sum_replicas(&mut self) -> Result<()> {
        let before = self.groups.world.now();
        (0..self.units.len()).try_for_each(|unit| self.start_replica_sum(unit))?;
        for unit in self.units.iter_mut() {
            let Some((sum, _)) = unit.summing.take() else { continue };
            let part = sum.wait()?.into_vec();
            match unit.shards_gradients() {
                true => unit.grad_part = part,
                false => unit.grads.here_mut("gradients")?[unit.own.clone()].copy_from_slice(&part),
            }
        }
        self.waited_since(before);
        Ok(())
    }

    /// Gives the loss to every rank of the pipeline, and with `Keep::First` to every rank of the data axis.
    fn share_loss(&mut self) -> Result<()> {
        let (mut loss, before) = ([self.result.loss], self.groups.world.now());
        if let Some(pipeline) = self.groups.along(MeshAxis::Pipeline) {
            pipeline.all_reduce(&mut loss, ReduceOp::Sum)?;
        }
        if self.place.is_led {
            self.groups.data().all_reduce(&mut loss, ReduceOp::Sum)?;
        }
        self.result.loss = loss[0];
        self.waited_since(before);
        Ok(())
    }

    /// Divides this rank's gradients by the loss scale. Returns whether any of them is infinite or NaN.
    fn unscale(&mut self, scaler: &GradScaler) -> Result<bool> {
        let mut found = false;
        for unit in self.units.iter_mut() {
            for at in 0..unit.pieces.len() {
                let range = unit.pieces[at].range.clone();
                found |= scaler.unscale(unit.grad_of(&range)?);
            }
            if !unit.pieces.is_empty() {
                self.groups.world.charge(&work(unscale_cost::<F>(unit.trained_len())));
            }
        }
        Ok(found)
    }

    /// Bounds the norm of all gradients of all ranks by `limit`.
    fn clip(&mut self, limit: f64) -> Result<()> {
        let mut squares = [0.0];
        for at in 0..self.units.len() {
            let (has_all, counts) = (self.has_all(), self.counts_here(at));
            let unit = &mut self.units[at];
            if has_all && !unit.pieces.is_empty() {
                squares[0] += norm(unit.whole_grad()?).powi(2);
            }
            if has_all || !counts {
                continue;
            }
            for piece in 0..unit.pieces.len() {
                if !unit.pieces[piece].counts {
                    continue;
                }
                let range = unit.pieces[piece].range.clone();
                squares[0] += norm(unit.grad_of(&range)?).powi(2);
            }
        }
        if !self.has_all() {
            let before = self.groups.world.now();
            self.groups.world.all_reduce(&mut squares, ReduceOp::Sum)?;
            self.waited_since(before);
        }
        if self.config.mixes_devices() {
            // GPUs add up in another order, and all ranks must clip alike.
            self.groups.world.broadcast(&mut squares, Rank(0))?;
        }
        let norm = squares[0].sqrt();
        self.result.norm = Some(norm);
        for unit in self.units.iter_mut() {
            if !unit.pieces.is_empty() {
                self.groups.world.charge(&work(optim::clip::cost::<F>(unit.trained_len())));
            }
            for piece in 0..unit.pieces.len() {
                let range = unit.pieces[piece].range.clone();
                optim::clip::clip(unit.grad_of(&range)?, norm, limit);
            }
        }
        Ok(())
    }

    /// If ranks have parts of parameters and the optimiser needs norms (LARS), gives the optimiser those of whole parameters and
    /// gradients. With a parameter server, the servers do so.
    fn share_norms(&mut self) -> Result<()> {
        let role = self.place.role();
        let has_parts = self.split.tensor.is_some() || self.split.experts.is_some() || self.place.is_cut();
        let (holders, shares) = match role.servers {
            0 => (self.groups.world, has_parts),
            servers => (self.groups.data(), servers > 1 && role.server.is_some()),
        };
        if !shares {
            return Ok(());
        }
        if !optim::build::<F>(self.config, &[])?.needs_norms() {
            return Ok(());
        }
        let mut squares = vec![[0.0; 2]; self.network.params().len()];
        for at in 0..self.units.len() {
            let counts = self.counts_here(at);
            self.units[at].each_piece(|piece, params, grads| {
                if counts && piece.counts {
                    let own = piece.optimiser.squares(params, grads);
                    let sums = squares[piece.first_param..].iter_mut().flatten();
                    sums.zip(own.into_iter().flatten()).for_each(|(sum, own)| *sum += own);
                }
            })?;
        }
        let before = self.groups.world.now();
        holders.all_reduce(squares.as_flattened_mut(), ReduceOp::Sum)?;
        self.waited_since(before);
        for piece in self.units.iter_mut().flat_map(|unit| &mut unit.pieces) {
            piece.optimiser.set_squares(&squares[piece.first_param..]);
        }
        Ok(())
    }
}
