//! Gradients in buckets on the CPU: divided by the number of ranks, summed during the backward pass.
//!
//! Where the elements of each bucket lie side by side, as they do unless layers are frozen, grouped or out of order, buckets are
//! views: gradients are divided and summed in place, and nothing is copied. Other buckets, and those of a hook, have buffers of
//! their own.
//!
//! ```text
//! gradients   | .. still being computed .. | bucket 1, on its way | bucket 0, on its way |
//! ```
//!
//! When the last view is full the backward pass has ended, so the rank's own thread sums that view.

use super::bucketing::{BucketState, Bucketing};
use super::unit::Tensor;
use super::worker::Worker;
use crate::buckets::{Bucket, views};
use crate::costs::{pack_cost, unpack_cost};
use crate::strategies::hooks::Hook;
use crate::timing::{BucketTimes, StepWork, work};
use crate::{Error, ParamSpec, Result};
use allfold_collectives::{Buffer, Rank, ReduceOp};
use allfold_kernels::nn::{Float, divide};

#[cfg(test)]
thread_local! {
    /// How often this thread's ranks have copied the state of a hook.
    pub(crate) static COPIES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn without_buckets() -> Error {
    Error::Strategy("the strategy exchanges buckets that it has not named".into())
}

/// Divides the gradient while it is copied. A product with the inverse of a power of two gives the same bits as the quotient and
/// is faster.
fn quotients<F: Float>(slots: &mut [F], gradient: &[F], ranks: F) {
    let inverse = F::ONE / ranks;
    if ranks.to_f64().log2().fract() == 0.0 {
        slots.iter_mut().zip(gradient).for_each(|(slot, &g)| *slot = g * inverse);
    } else {
        slots.iter_mut().zip(gradient).for_each(|(slot, &g)| *slot = g / ranks);
    }
}

impl<F: Float> Bucketing for Worker<'_, F> {
    fn params(&self) -> &[ParamSpec] {
        self.network.params()
    }

    fn unreached(&self) -> Vec<usize> {
        self.network.unreached()
    }

    fn element(&self) -> usize {
        size_of::<F>()
    }

    fn use_buckets(&mut self, buckets: &[Bucket]) -> Result<()> {
        let [unit] = &mut self.units[..] else {
            return Err(Error::Strategy("buckets need all layers in one unit".into()));
        };
        let (params, data) = (self.network.params(), self.groups.data());
        let mut slots = vec![None; params.len()];
        for (at, bucket) in buckets.iter().enumerate() {
            bucket.places(params).for_each(|(param, range)| slots[param] = Some((at, range)));
        }
        let hook = Hook::named(self.config);
        // A shared buffer is not cut into views: the exchange would have to copy views that share a memory page.
        let shared = |bucket: &Bucket| data.buffer::<F>(bucket.elements).is_shared();
        let cut = buckets.len() > 1 && buckets.iter().any(shared);
        // The elements of a view have another order than those of a GPU's bucket.
        let can_view = matches!(hook, Hook::None) && !cut && !self.config.mixes_devices();
        let views = views(buckets, params).filter(|_| can_view);
        unit.grads = Tensor::Here(match (&views, buckets) {
            (Some(_), [_]) => data.buffer(unit.padded),
            _ => Buffer::zeroed(unit.padded),
        });
        let (buckets, filling) = (buckets.to_vec(), buckets.iter().map(|_| None).collect());
        self.bucketing =
            Some(BucketState { buckets, slots, views, filling, hook, under_way: Vec::new(), away: 0 });
        Ok(())
    }

    fn fill(&mut self, param: usize) -> Result<()> {
        let Worker { units, network, groups, bucketing: Some(state), .. } = self else {
            return Err(without_buckets());
        };
        let Some((bucket, range)) = state.slots[param].clone() else { return Err(without_buckets()) };
        let (start, ranks) = (groups.world.now(), F::from_f64(f64::from(groups.data().size())));
        let elements = network.params()[param].range.clone();
        groups.world.charge(&work(pack_cost::<F>(elements.len())));
        let gradient = &mut units[0].grads.here_mut("gradients")?[elements];
        if state.views.is_some() {
            divide(gradient, ranks);
        } else {
            let new_buffer = || groups.data().buffer(state.buckets[bucket].elements);
            let slots = &mut state.filling[bucket].get_or_insert_with(new_buffer)[range];
            match state.hook {
                Hook::LocalSgd => slots.copy_from_slice(gradient),
                _ => quotients(slots, gradient, ranks),
            }
        }
        self.did(StepWork::Divide, None, start);
        Ok(())
    }

    fn send_bucket(&mut self, bucket: usize) -> Result<()> {
        let Worker { units, groups, observed, bucketing: Some(state), .. } = self else {
            return Err(without_buckets());
        };
        let (now, own) = (groups.world.now(), &state.buckets[bucket]);
        let (params, bytes) = (own.params.len(), (own.elements * size_of::<F>()) as u64);
        observed.log.push(BucketTimes { bucket, params, bytes, ready: now, sent: now, done: now });
        let buffer = match &state.views {
            Some(views) if bucket + 1 == views.len() => return Ok(()),
            Some(views) => units[0].grads.here_mut("gradients")?.split_off(views[bucket].start),
            None => state.filling[bucket].take().unwrap_or_else(|| Buffer::zeroed(0)),
        };
        state.away += buffer.len();
        state.under_way.push(state.hook.send(bucket, buffer, groups.data())?);
        Ok(())
    }

    fn finish_buckets(&mut self) -> Result<()> {
        let Some(mut state) = self.bucketing.take() else { return Err(without_buckets()) };
        let finished = self.finish_all(&mut state);
        self.bucketing = Some(state);
        finished
    }

    fn broadcast_buffers(&mut self) -> Result<()> {
        let before = self.groups.world.now();
        self.groups.data().broadcast(&mut self.buffers, Rank(0))?;
        self.waited_since(before);
        Ok(())
    }

    fn average_params(&mut self) -> Result<()> {
        if self.result.skipped { Ok(()) } else { self.average() }
    }
}

impl<F: Float> Worker<'_, F> {
    fn finish_all(&mut self, state: &mut BucketState<F>) -> Result<()> {
        let mut sums = Vec::with_capacity(state.under_way.len());
        for (at, exchange) in state.under_way.drain(..).enumerate() {
            let (before, bucket) = (self.groups.world.now(), &state.buckets[at]);
            let place = (at, bucket, self.network.params());
            let (buffer, done) = state.hook.finish(exchange, place, self.groups.data())?;
            self.waited_since(before);
            self.observed.log[at].done = done;
            if state.views.is_some() {
                sums.push(buffer);
                continue;
            }
            let grads = self.units[0].grads.here_mut("gradients")?;
            for (param, range) in bucket.places(self.network.params()) {
                grads[self.network.params()[param].range.clone()].copy_from_slice(&buffer[range]);
            }
            let start = self.groups.world.now();
            self.groups.world.charge(&work(unpack_cost::<F>(buffer.len())));
            self.did(StepWork::Divide, None, start);
            state.filling[at] = Some(buffer);
        }
        state.away = 0;
        let grads = self.units[0].grads.here_mut("gradients")?;
        sums.into_iter().rev().for_each(|sum| grads.join(sum));
        if let (Some(last), Some(times)) = (state.views.iter().flatten().last(), self.observed.log.last_mut())
        {
            times.sent = self.groups.world.now();
            self.groups.data().all_reduce(&mut grads[last.clone()], ReduceOp::Sum)?;
            times.done = self.groups.world.now();
            let before = times.sent;
            self.waited_since(before);
        }
        Ok(())
    }

    /// Replaces the parameters of every unit by their means over the data axis.
    fn average(&mut self) -> Result<()> {
        let before = self.groups.world.now();
        for unit in self.units.iter_mut() {
            let params = unit.params.here_mut("parameters")?;
            self.groups.data().all_reduce(params, ReduceOp::Avg)?;
        }
        self.waited_since(before);
        Ok(())
    }

    /// Averages the parameters over the data axis, if each rank has its own.
    pub fn settle(&mut self) -> Result<()> {
        if self.replicas_diverge() { self.average() } else { Ok(()) }
    }

    /// Whether each rank has parameters, and so optimiser state, of its own between two steps.
    pub fn replicas_diverge(&self) -> bool {
        self.bucketing.as_ref().is_some_and(|state| matches!(state.hook, Hook::LocalSgd))
    }

    /// This rank's state of the hook, by name. Each entry has the same length on every rank.
    pub fn hook_state(&mut self) -> Vec<(&'static str, Vec<F>)> {
        #[cfg(test)]
        COPIES.with(|copies| copies.set(copies.get() + 1));
        let Worker { network, bucketing: Some(state), .. } = self else { return Vec::new() };
        state.hook.hook_state(&state.buckets, network.params())
    }

    /// Continues from the state that [`Worker::hook_state`] returned.
    pub fn load_hook_state(&mut self, values: &[Vec<F>]) {
        if let Worker { network, bucketing: Some(state), .. } = self {
            state.hook.load_hook_state(&state.buckets, network.params(), values);
        }
    }

    /// Adapts the hook's state after a step under a loss scale, as [`Hook::after_scaled`] does.
    pub fn after_scaled(&mut self, skipped: bool, by: F) {
        if let Some(state) = &mut self.bucketing {
            state.hook.after_scaled(skipped, by);
        }
    }
}
