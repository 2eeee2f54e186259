//! Distributed data parallel: every rank holds a replica and its own samples; gradients are averaged.
//!
//! ```text
//! compute        | forward ... | backward fc | conv2 | conv1 |.....| unpack | SGD |
//! communication                      | bucket 0 | bucket 1   | bucket 2 |
//!                                                            '-----' exposed: what backward did not hide
//! ```
//!
//! A gradient is divided by the number of ranks once, when it is copied into its bucket; the buckets are summed. A
//! bucket is sent as soon as its gradients and the bucket before it are there, so all ranks send in one order. With a
//! canonical algorithm an element's sum does not depend on the bucket that it travels in, so neither do the weights.
//! (S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.)

use super::{Strategy, Synced};
use crate::buckets::{Bucket, Caps, buckets};
use crate::timing::{BucketTimes, work};
use crate::{Error, Listener, Model, Network, Objective, Place, Result};
use allfold_collectives::{Buffer, Communicator, Rank, ReduceOp, Work};
use allfold_kernels::nn::{Cost, Float};
use allfold_sim::Picos;

/// The rank whose weights and buffers win.
const ROOT: Rank = Rank(0);

/// Training on all ranks of a communicator.
pub struct Ddp<'a, F: Float> {
    comm: &'a Communicator,
    buckets: Vec<Bucket>,
    /// Of each parameter: its bucket, and where its elements lie in that bucket.
    homes: Vec<(usize, std::ops::Range<usize>)>,
    /// Buffers between two steps, one per bucket.
    idle: Vec<Option<Buffer<F>>>,
    log: Vec<BucketTimes>,
}

impl<'a, F: Float> Ddp<'a, F> {
    /// Buckets for this network's gradients, closed at these caps.
    pub fn new(network: &Network<F>, caps: Caps, comm: &'a Communicator) -> Ddp<'a, F> {
        let buckets = buckets(network.params(), size_of::<F>(), caps);
        let homes =
            network.params().iter().enumerate().map(|(param, place)| home(&buckets, param, place)).collect();
        let idle = buckets.iter().map(|bucket| Some(Buffer::zeroed(bucket.range.len()))).collect();
        Ddp { comm, buckets, homes, idle, log: Vec::new() }
    }

    /// A pass over the model, with the idle buckets to fill.
    fn pass(&mut self) -> Pass<'_, F> {
        Pass {
            comm: self.comm,
            world: F::from_f64(f64::from(self.comm.size())),
            buckets: &self.buckets,
            homes: &self.homes,
            filling: std::mem::take(&mut self.idle),
            missing: self.buckets.iter().map(|bucket| bucket.params.len()).collect(),
            under_way: Vec::with_capacity(self.buckets.len()),
            log: Vec::with_capacity(self.buckets.len()),
            waited: Picos::ZERO,
        }
    }

    fn broadcast(&self, values: &mut [F]) -> Result<()> {
        Ok(self.comm.broadcast(values, ROOT)?)
    }
}

/// A parameter's bucket, and its elements there.
fn home(buckets: &[Bucket], param: usize, place: &Place) -> (usize, std::ops::Range<usize>) {
    let bucket = buckets.iter().position(|bucket| bucket.params.contains(&param)).unwrap_or_default();
    let start = buckets[bucket].range.start;
    (bucket, place.range.start - start..place.range.end - start)
}

/// Cost of dividing and copying `elements` into a bucket.
pub fn pack_cost<F>(elements: usize) -> Cost {
    Cost::launch(elements, 2 * elements, size_of::<F>())
}

/// Cost of copying a bucket of `elements` back.
pub fn unpack_cost<F>(elements: usize) -> Cost {
    Cost::launch(0, 2 * elements, size_of::<F>())
}

impl<F: Float> Strategy<F> for Ddp<'_, F> {
    /// Verifies that every rank has the same parameters by name and shape, then gives all of them rank 0's values.
    fn start(&mut self, model: &mut Model<F>) -> Result<()> {
        same_layout(self.comm, model.network())?;
        self.broadcast(&mut model.params)?;
        self.broadcast(&mut model.buffers)
    }

    fn forward(&mut self, model: &mut Model<F>, x: &[F]) -> Result<Picos> {
        let mut pass = self.pass();
        model.forward(x, &mut pass)?;
        let Pass { filling, waited, .. } = pass;
        self.idle = filling;
        Ok(waited)
    }

    fn backward(&mut self, model: &mut Model<F>, objective: Objective<F>) -> Result<Synced<F>> {
        let mut pass = self.pass();
        let loss = model.backward(objective, &mut pass)?;
        let Pass { under_way, mut log, waited, filling, .. } = pass;
        if objective.more {
            self.idle = filling;
            return Ok(Synced { loss, exposed: waited });
        }

        let mut exposed = waited;
        for ((bucket, handle), times) in self.buckets.iter().zip(under_way).zip(&mut log) {
            let before = self.comm.now();
            let (buffer, done) = handle.wait_timed()?;
            exposed += self.comm.now() - before;
            times.done = done;
            model.grads[bucket.range.clone()].copy_from_slice(&buffer);
            self.comm.charge(&work(unpack_cost::<F>(buffer.len())));
            self.idle.push(Some(buffer));
        }
        self.log = log;
        Ok(Synced { loss, exposed })
    }

    /// Running statistics are each rank's own in training; rank 0's are the ones that are evaluated and kept, as in
    /// PyTorch.
    fn before_evaluation(&mut self, model: &mut Model<F>) -> Result<()> {
        self.broadcast(&mut model.buffers)
    }

    fn buckets(&self) -> &[BucketTimes] {
        &self.log
    }
}

/// One pass over the model, forward or backward: adds up what layers share, fills buckets and sends them.
struct Pass<'a, F: Float> {
    comm: &'a Communicator,
    world: F,
    buckets: &'a [Bucket],
    homes: &'a [(usize, std::ops::Range<usize>)],
    /// Buckets not yet sent.
    filling: Vec<Option<Buffer<F>>>,
    /// Of each bucket, how many gradients it still waits for.
    missing: Vec<usize>,
    /// Buckets sent, in order.
    under_way: Vec<Work<Buffer<F>>>,
    log: Vec<BucketTimes>,
    /// Time spent in totals, which a layer cannot go on without.
    waited: Picos,
}

impl<F: Float> Listener<F> for Pass<'_, F> {
    fn spent(&mut self, cost: Cost) {
        self.comm.charge(&work(cost));
    }

    fn ready(&mut self, param: usize, gradient: &[F]) -> Result<()> {
        let (bucket, range) = &self.homes[param];
        if let Some(buffer) = &mut self.filling[*bucket] {
            buffer[range.clone()].iter_mut().zip(gradient).for_each(|(slot, &g)| *slot = g / self.world);
        }
        self.comm.charge(&work(pack_cost::<F>(gradient.len())));
        self.missing[*bucket] -= 1;
        self.send_ready()
    }

    /// After the buckets under way: all ranks send in one order.
    fn total(&mut self, values: &mut [f64]) -> Result<()> {
        let before = self.comm.now();
        self.comm.all_reduce(values, ReduceOp::Sum)?;
        self.waited += self.comm.now() - before;
        Ok(())
    }
}

impl<F: Float> Pass<'_, F> {
    /// Sends every bucket that is full and whose turn it is.
    fn send_ready(&mut self) -> Result<()> {
        while let Some(bucket) = self.buckets.get(self.under_way.len()) {
            let next = self.under_way.len();
            if self.missing[next] > 0 {
                return Ok(());
            }
            let Some(buffer) = self.filling[next].take() else { return Ok(()) };
            let now = self.comm.now();
            self.log.push(BucketTimes {
                bucket: next,
                params: bucket.params.len(),
                bytes: std::mem::size_of_val(&*buffer) as u64,
                ready: now,
                sent: now,
                done: now,
            });
            self.under_way.push(self.comm.all_reduce_async(buffer, ReduceOp::Sum)?);
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
        crate::hash::fnv1a(text.as_bytes()) as i64,
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
