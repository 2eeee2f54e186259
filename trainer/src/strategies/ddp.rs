//! Distributed data parallel: every rank holds a replica and its own samples; gradients are averaged.
//!
//! ```text
//! compute        | forward ... | backward fc | conv2 | conv1 |.....| unpack | SGD |
//! communication                      | bucket 0 | bucket 1   | bucket 2 |
//!                                                            '-----' exposed: what backward did not hide
//! ```
//!
//! A gradient is divided by the number of ranks once, when it is final; the buckets are summed. Where the elements of each
//! bucket lie side by side, as they do unless layers are frozen, grouped or out of order, buckets are views: gradients are
//! divided and summed where they lie, and nothing is copied.
//!
//! ```text
//! gradients   | .. still being computed .. | bucket 1, on its way | bucket 0, on its way |
//! ```
//!
//! A bucket is sent as soon as its gradients and the bucket before it are there, so all ranks send in one order. Nothing hides
//! the sum of the last view, so the rank's own thread makes it. With a canonical algorithm an element's sum does not depend
//! on the bucket that it travels in, so neither do the weights. After the first step buckets are made again in the order in
//! which gradients became ready, by rank 0's account. (S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data
//! Parallel Training", VLDB 2020.)

use super::hooks::{BucketExchange, Hook};
use super::{Strategy, Synced};
use crate::buckets::{Bucket, grouped, views};
use crate::timing::{BucketTimes, work};
use crate::{Config, Error, Listener, Model, Network, Objective, ParamSpec, Result};
use allfold_collectives::{Buffer, Communicator, Rank, ReduceOp};
use allfold_kernels::nn::{Float, OpCost, divide};
use allfold_sim::Picos;
use std::cmp::Reverse;
use std::ops::Range;

/// The rank whose weights and buffers all ranks take over.
const ROOT: Rank = Rank(0);

/// Training on all ranks of a communicator.
pub struct Ddp<'a, F: Float> {
    comm: &'a Communicator,
    config: Config,
    params: Vec<ParamSpec>,
    buckets: Vec<Bucket>,
    /// For each parameter: its bucket, and its elements in that bucket. `None` for frozen parameters.
    bucket_slots: Vec<Option<(usize, Range<usize>)>>,
    /// The range of each bucket among the gradients, if buckets are views.
    views: Option<Vec<Range<usize>>>,
    /// Otherwise the buckets' buffers between two steps.
    idle: Vec<Option<Buffer<F>>>,
    hook: Hook<F>,
    log: Vec<BucketTimes>,
    /// The number of steps whose gradients were exchanged.
    steps: u64,
    /// Whether no gradients were exchanged since this was made.
    fresh: bool,
    /// The parameters that no rank used in the last step; of a static graph, in the first.
    unused: Vec<usize>,
    /// More micro-batches follow the one that goes forward next.
    inside: bool,
}

impl<'a, F: Float> Ddp<'a, F> {
    /// Buckets for this network's gradients, as `config` wants them.
    pub fn new(network: &Network<F>, config: &Config, comm: &'a Communicator) -> Ddp<'a, F> {
        let mut ddp = Ddp {
            comm,
            config: config.clone(),
            params: network.params().to_vec(),
            buckets: Vec::new(),
            bucket_slots: Vec::new(),
            views: None,
            idle: Vec::new(),
            hook: Hook::named(config),
            log: Vec::new(),
            steps: 0,
            fresh: true,
            unused: Vec::new(),
            inside: false,
        };
        // Parameters that the loss does not reach come last; `unused` tells whether their gradients ever become ready.
        let mut order = [network.order(), network.unreached()].concat();
        if !config.find_unused {
            // Made again after the first step, so as PyTorch makes the first ones: last parameter first.
            order.sort_unstable_by_key(|&param| Reverse(param));
        }
        ddp.arrange(&order);
        ddp
    }

    /// Makes the buckets over parameters in this order.
    fn arrange(&mut self, order: &[usize]) {
        let sizes = (size_of::<F>(), self.config.caps());
        self.buckets = grouped(order, &self.params, sizes, &self.config.groups);
        self.bucket_slots = vec![None; self.params.len()];
        for (at, bucket) in self.buckets.iter().enumerate() {
            for (param, range) in bucket.places(&self.params) {
                self.bucket_slots[param] = Some((at, range));
            }
        }
        // Memory that ranks share cannot be cut: parts on one page would go through slots.
        let shared = |bucket: &Bucket| self.comm.buffer::<F>(bucket.elements).is_shared();
        let cut = self.buckets.len() > 1 && self.buckets.iter().any(shared);
        let plain = matches!(self.hook, Hook::None) && !cut;
        self.views = views(&self.buckets, &self.params).filter(|_| plain);
        self.idle.clear();
        self.hook.reset();
    }

    /// After the first step: buckets in the order in which gradients became ready, as rank 0 saw it.
    fn rearrange(&mut self, ready: &[usize]) -> Result<()> {
        let mut order: Vec<i64> = ready.iter().map(|&param| param as i64).collect();
        self.comm.broadcast(&mut order, ROOT)?;
        let order: Vec<usize> = order.iter().map(|param| param.unsigned_abs() as usize).collect();
        let before = self.buckets.clone();
        let sizes = (size_of::<F>(), self.config.caps());
        if grouped(&order, &self.params, sizes, &self.config.groups) != before {
            self.arrange(&order);
        }
        Ok(())
    }

    /// After an exchange: finds out which parameters other ranks have used, and after the first step makes the buckets again.
    fn exchanged(&mut self, synced: Synced<F>, mine: &[usize], ready: &[usize]) -> Result<Synced<F>> {
        self.find_unused(mine)?;
        if self.fresh && !self.config.find_unused {
            self.rearrange(ready)?;
        }
        (self.steps, self.fresh) = (self.steps + 1, false);
        Ok(synced)
    }

    /// A pass over the model, with the idle buckets to fill.
    fn pass(&mut self) -> Pass<'_, F> {
        let mut filling = std::mem::take(&mut self.idle);
        filling.resize_with(self.buckets.len(), || None);
        Pass {
            comm: self.comm,
            world: F::from_f64(f64::from(self.comm.size())),
            buckets: &self.buckets,
            bucket_slots: &self.bucket_slots,
            views: self.views.as_deref(),
            hook: &mut self.hook,
            filling,
            missing: self.buckets.iter().map(|bucket| bucket.params.len()).collect(),
            under_way: Vec::with_capacity(self.buckets.len()),
            log: Vec::with_capacity(self.buckets.len()),
            ready: Vec::with_capacity(self.bucket_slots.len()),
            waited: Picos::ZERO,
        }
    }

    fn broadcast(&self, values: &mut [F]) -> Result<()> {
        Ok(self.comm.broadcast(values, ROOT)?)
    }

    /// Gives every rank rank 0's buffers, or, if each rank has weights of its own, the mean of the weights.
    fn settle(&self, model: &mut Model<F>) -> Result<()> {
        if matches!(self.hook, Hook::LocalSgd) {
            self.comm.all_reduce(&mut model.params, ReduceOp::Avg)?;
        }
        self.broadcast(&mut model.buffers)
    }

    /// After a backward pass of which some parameters were not ready: asks who used them, where that is allowed.
    fn find_unused(&mut self, mine: &[usize]) -> Result<()> {
        let Config { find_unused, static_graph, .. } = self.config;
        if !find_unused && !static_graph {
            return match mine.first() {
                None => Ok(()),
                Some(&first) => Err(Error::Config(format!(
                    "{} of {} parameters had no gradient in this step, `{}` first: the loss does not depend on them; set \
                     `find_unused`, or `static_graph` if it is so in every step",
                    mine.len(),
                    self.params.len(),
                    self.params[first].name
                ))),
            };
        }
        if static_graph && !self.fresh {
            return Ok(());
        }
        let mut used = vec![1u8; self.params.len()];
        mine.iter().for_each(|&param| used[param] = 0);
        self.comm.all_reduce(&mut used, ReduceOp::Max)?;
        self.unused =
            (0..used.len()).filter(|&param| used[param] == 0 && self.bucket_slots[param].is_some()).collect();
        Ok(())
    }
}

/// Cost of dividing and copying `elements` into a bucket.
pub fn pack_cost<F>(elements: usize) -> OpCost {
    OpCost::launch(elements, 2 * elements, size_of::<F>())
}

/// Cost of copying a bucket of `elements` back.
pub fn unpack_cost<F>(elements: usize) -> OpCost {
    OpCost::launch(0, 2 * elements, size_of::<F>())
}

impl<F: Float> Strategy<F> for Ddp<'_, F> {
    /// Verifies that every rank has the same parameters by name and shape, then gives all of them rank 0's values.
    fn start(&mut self, model: &mut Model<F>) -> Result<()> {
        same_layout(self.comm, model.network())?;
        if let (Some(_), [_]) = (&self.views, &self.buckets[..]) {
            model.grads = self.comm.buffer(model.grads.len());
        }
        self.broadcast(&mut model.params)?;
        self.broadcast(&mut model.buffers)
    }

    fn forward(&mut self, model: &mut Model<F>, x: &[F]) -> Result<Picos> {
        let before = self.comm.now();
        if self.config.broadcast_buffers && !self.inside {
            self.broadcast(&mut model.buffers)?;
        }
        let sent = self.comm.now() - before;
        let mut pass = self.pass();
        model.forward(x, &mut pass)?;
        let Pass { filling, waited, .. } = pass;
        self.idle = filling;
        Ok(waited + sent)
    }

    fn backward(&mut self, model: &mut Model<F>, objective: Objective<F>) -> Result<Synced<F>> {
        self.inside = objective.more;
        let mut pass = self.pass();
        let loss = model.backward(objective, &mut pass)?;
        if objective.more {
            let Pass { waited, filling, .. } = pass;
            self.idle = filling;
            return Ok(Synced { loss, exposed: waited });
        }
        let mine: Vec<usize> = (0..pass.bucket_slots.len())
            .filter(|at| pass.bucket_slots[*at].is_some() && !pass.ready.contains(at))
            .collect();
        for &param in &mine {
            // A rank without this gradient adds zeros to the sum.
            pass.on_grad(param, model.network().params()[param].range.clone(), &mut model.grads)?;
        }
        let Pass { under_way, mut log, waited, ready, filling, .. } = pass;
        self.idle = filling;

        let mut exposed = waited;
        let mut sums = Vec::with_capacity(under_way.len());
        for (at, handle) in under_way.into_iter().enumerate() {
            let before = self.comm.now();
            let (buffer, done) =
                self.hook.finish(handle, (at, &self.buckets[at], &self.params), self.comm)?;
            exposed += self.comm.now() - before;
            log[at].done = done;
            if self.views.is_some() {
                sums.push(buffer);
                continue;
            }
            for (param, range) in self.buckets[at].places(&self.params) {
                model.grads[self.params[param].range.clone()].copy_from_slice(&buffer[range]);
            }
            self.comm.charge(&work(unpack_cost::<F>(buffer.len())));
            self.idle[at] = Some(buffer);
        }
        sums.into_iter().rev().for_each(|sum| model.grads.join(sum));
        if let (Some(last), Some(times)) = (self.views.iter().flatten().last(), log.last_mut()) {
            times.sent = self.comm.now();
            self.comm.all_reduce(&mut model.grads[last.clone()], ReduceOp::Sum)?;
            times.done = self.comm.now();
            exposed += times.done - times.sent;
        }
        self.log = log;
        self.exchanged(Synced { loss, exposed }, &mine, &ready)
    }

    /// Running statistics are each rank's own in training; rank 0's are the ones that are evaluated and kept, as in
    /// PyTorch.
    fn before_evaluation(&mut self, model: &mut Model<F>) -> Result<()> {
        self.settle(model)
    }

    fn after_step(&mut self, model: &mut Model<F>) -> Result<()> {
        if matches!(self.hook, Hook::LocalSgd) && self.steps.is_multiple_of(self.config.local_steps) {
            self.comm.all_reduce(&mut model.params, ReduceOp::Avg)?;
        }
        Ok(())
    }

    fn hook_state(&mut self) -> Vec<(&'static str, Vec<F>)> {
        self.hook.hook_state(&self.buckets, &self.params)
    }

    fn load_hook_state(&mut self, steps: u64, values: &[Vec<F>]) {
        self.steps = steps;
        self.hook.load_hook_state(&self.buckets, &self.params, values);
    }

    fn undo(&mut self) {
        self.hook.undo();
    }

    fn rescale(&mut self, by: F) {
        self.hook.rescale(by);
    }

    fn replicas_diverge(&self) -> bool {
        matches!(self.hook, Hook::LocalSgd)
    }

    fn unused(&self) -> &[usize] {
        &self.unused
    }

    fn bytes(&self) -> u64 {
        let elements = self.idle.iter().flatten().map(|buffer| buffer.len()).sum::<usize>();
        ((elements + self.hook.elements()) * size_of::<F>()) as u64
    }

    fn buckets(&self) -> &[BucketTimes] {
        &self.log
    }
}

/// One pass over the model, forward or backward: sums the totals of synchronised layers, fills buckets and sends them.
struct Pass<'a, F: Float> {
    comm: &'a Communicator,
    world: F,
    buckets: &'a [Bucket],
    bucket_slots: &'a [Option<(usize, Range<usize>)>],
    /// Where buckets are views: where each lies among the gradients. The last one stays there.
    views: Option<&'a [Range<usize>]>,
    hook: &'a mut Hook<F>,
    /// Buckets not yet sent.
    filling: Vec<Option<Buffer<F>>>,
    /// For each bucket, how many gradients are missing.
    missing: Vec<usize>,
    /// Buckets sent, in order.
    under_way: Vec<BucketExchange<F>>,
    log: Vec<BucketTimes>,
    /// Parameters in the order in which they became ready.
    ready: Vec<usize>,
    /// Time spent in totals, for which layers wait.
    waited: Picos,
}

impl<F: Float> Listener<F> for Pass<'_, F> {
    fn on_cost(&mut self, cost: OpCost) {
        self.comm.charge(&work(cost));
    }

    fn on_grad(&mut self, param: usize, elements: Range<usize>, grads: &mut Buffer<F>) -> Result<()> {
        let Some((bucket, range)) = &self.bucket_slots[param] else { return Ok(()) };
        self.comm.charge(&work(pack_cost::<F>(elements.len())));
        if self.views.is_some() {
            divide(&mut grads[elements], self.world);
        } else {
            let room = || self.comm.buffer(self.buckets[*bucket].elements);
            let slots = &mut self.filling[*bucket].get_or_insert_with(room)[range.clone()];
            match self.hook {
                Hook::LocalSgd => slots.copy_from_slice(&grads[elements]),
                _ => quotients(slots, &grads[elements], self.world),
            }
        }
        self.ready.push(param);
        self.missing[*bucket] -= 1;
        self.send_ready(grads)
    }

    /// Runs after the buckets in flight: all ranks send in one order.
    fn all_reduce(&mut self, values: &mut [f64]) -> Result<()> {
        let before = self.comm.now();
        self.comm.all_reduce(values, ReduceOp::Sum)?;
        self.waited += self.comm.now() - before;
        Ok(())
    }
}

/// Divides while it copies. By a power of two a product with its inverse is the same number, and quicker.
fn quotients<F: Float>(slots: &mut [F], gradient: &[F], world: F) {
    let inverse = F::ONE / world;
    if world.to_f64().log2().fract() == 0.0 {
        slots.iter_mut().zip(gradient).for_each(|(slot, &g)| *slot = g * inverse);
    } else {
        slots.iter_mut().zip(gradient).for_each(|(slot, &g)| *slot = g / world);
    }
}

impl<F: Float> Pass<'_, F> {
    /// Sends every full bucket that is next in order; not the last view.
    fn send_ready(&mut self, grads: &mut Buffer<F>) -> Result<()> {
        while let Some(bucket) =
            self.buckets.get(self.log.len()).filter(|_| self.missing[self.log.len()] == 0)
        {
            let (next, now) = (self.log.len(), self.comm.now());
            let bytes = (bucket.elements * size_of::<F>()) as u64;
            let params = bucket.params.len();
            self.log.push(BucketTimes { bucket: next, params, bytes, ready: now, sent: now, done: now });
            let buffer = match self.views {
                Some(views) if next + 1 == views.len() => return Ok(()),
                Some(views) => grads.split_off(views[next].start),
                None => self.filling[next].take().unwrap_or_else(|| Buffer::zeroed(0)),
            };
            self.under_way.push(self.hook.send(next, buffer, self.comm)?);
        }
        Ok(())
    }
}

/// Refuses ranks whose parameters or buffers differ from rank 0's in number, name or shape.
fn same_layout<F: Float>(comm: &Communicator, network: &Network<F>) -> Result<()> {
    let places = || network.params().iter().chain(network.buffers());
    let text: String = places().map(|place| format!("{} {:?};", place.name, place.shape)).collect();
    let mine = [
        network.params().len() as i64,
        network.param_count() as i64,
        allfold_sim::fnv1a(text.as_bytes()) as i64,
    ];
    let mut all = vec![0i64; mine.len() * comm.size() as usize];
    comm.all_gather(&mine, &mut all)?;
    let mut rows = all.chunks_exact(mine.len());
    let Some(first) = rows.next() else { return Ok(()) };
    match rows.position(|row| row != first) {
        None => Ok(()),
        Some(at) => {
            let row = &all[(at + 1) * mine.len()..][..mine.len()];
            Err(Error::Replicas(format!(
                "rank {} has {} parameters of {} elements and rank 0 has {} of {}, or their names and shapes differ; \
                 every rank must build the same model",
                at + 1,
                row[0],
                row[1],
                first[0],
                first[1]
            )))
        }
    }
}
