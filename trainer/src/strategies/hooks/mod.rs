//! Hooks: how a bucket is exchanged, as it is or compressed.
//!
//! | hook | sent for n elements | the sum is |
//! |---|---|---|
//! | `none` | n | exact in the gradients' type |
//! | `fp16`, `bf16` | n of 2 bytes | rounded to the narrow type, element by element |
//! | `powersgd` | two thin matrices for each parameter | of low rank; the rest is fed back |
//! | `topk` | the largest of n, with their positions | sparse; the rest is fed back |
//! | `int8` | n of 1 byte and a scale | rounded to 1 of 255 values |
//! | `local_sgd` | nothing; weights are averaged every few steps | each rank's own |
//!
//! A hook other than `local_sgd` gets a bucket that is already divided by the number of ranks, and returns the sum over ranks.
//! `none`, `fp16` and `bf16` do not mix elements: with them and a canonical algorithm, the size of buckets changes no bits.

mod calls;
mod feedback;
mod int8;
mod own;
pub mod powersgd;
pub mod topk;

pub use calls::{HookCall, HookCalls, calls, check_predicted};
pub use own::{BucketHook, BuildHook, OwnHook};

use crate::added::{Added, typed};
use crate::buckets::{Bucket, flat, split_by_bucket};
use crate::timing::work;
use crate::{ParamSpec, Result};
use allfold_collectives::{Buffer, Communicator, ReduceOp, Work};
use allfold_kernels::nn::Float;
use allfold_kernels::{bf16, f16};
use allfold_sim::Picos;
use calls::compress_cost;

/// The names by which a configuration selects a hook.
pub const HOOKS: &[(&str, &str)] = &[
    ("none", "gradients as they are"),
    ("fp16", "gradients in f16"),
    ("bf16", "gradients in bf16"),
    ("powersgd", "two thin matrices for each parameter, with error feedback"),
    ("topk", "the largest elements of a bucket, with error feedback"),
    ("int8", "8 bits for each element"),
    ("local_sgd", "no gradients; weights are averaged every `ddp.local_steps` steps"),
];

/// The hooks that the program added.
pub(crate) static ADDED: Added<OwnHook> = Added::to("hook", HOOKS);

/// A hook with its state for each bucket.
pub enum Hook<F: Float> {
    /// The bucket is sent uncompressed.
    None,
    /// Gradients are sent in f16.
    Fp16,
    /// Gradients are sent in bf16.
    Bf16,
    /// Gradients are sent as products of matrices of low rank.
    PowerSgd(powersgd::PowerSgd<F>),
    /// Only the largest elements are sent.
    TopK(topk::TopK<F>),
    /// Gradients are sent as 8-bit integers with a scale.
    Int8,
    /// Gradients are not sent; weights are averaged every few steps.
    LocalSgd,
    /// The program's own hook.
    Own(Box<dyn BucketHook<F>>),
}

/// A bucket in flight.
pub enum BucketExchange<F: Float> {
    /// The exchange of an uncompressed bucket.
    Whole(Work<Buffer<F>>),
    /// A bucket sent in f16; its buffer is kept for the sum.
    Fp16(Work<Buffer<f16>>, Buffer<F>),
    /// A bucket sent in bf16; its buffer is kept for the sum.
    Bf16(Work<Buffer<bf16>>, Buffer<F>),
    /// A bucket sent as 8-bit integers; its buffer is kept for the sum.
    Int8(Work<Buffer<u8>>, Buffer<F>),
    /// A bucket of which positions and values were sent; its buffer is kept for the sum.
    TopK(Work<Buffer<i32>>, Work<Buffer<F>>, Buffer<F>),
    /// A bucket that is exchanged only when it is waited for, by several collectives one after another.
    Later(Buffer<F>),
    /// The rank's own gradients, which are not exchanged.
    Kept(Buffer<F>),
}

impl<F: Float> Hook<F> {
    /// The hook that `config` selects.
    pub fn named(config: &crate::Config) -> Hook<F> {
        // If an overflow skips a step, the hook's state must become that of before the step.
        let undoable = config.precision.loss_scale > 0.0;
        match config.ddp.hook.as_str() {
            "fp16" => Hook::Fp16,
            "bf16" => Hook::Bf16,
            "powersgd" => {
                Hook::PowerSgd(powersgd::PowerSgd::new(config.ddp.powersgd_rank, config.seed, undoable))
            }
            "topk" => Hook::TopK(topk::TopK::new(config.ddp.topk_share, undoable)),
            "int8" => Hook::Int8,
            "local_sgd" => Hook::LocalSgd,
            other => {
                let own = ADDED.find(other).and_then(|own| typed::<BuildHook<F>>(&own.f32, &own.f64));
                own.map_or(Hook::None, |build| Hook::Own(build(config)))
            }
        }
    }

    /// Resets the state of buckets, because the buckets have changed.
    pub fn reset(&mut self) {
        match self {
            Hook::PowerSgd(state) => state.reset(),
            Hook::TopK(state) => state.errors_mut().clear(),
            _ => {}
        }
    }

    /// The number of elements of the hook's state.
    pub fn elements(&self) -> usize {
        match self {
            Hook::PowerSgd(state) => state.elements(),
            Hook::TopK(state) => state.errors().elements(),
            _ => 0,
        }
    }

    /// This rank's hook state by name, laid out so that buckets of other sizes can continue from it; equally long on every rank.
    pub fn hook_state(&mut self, buckets: &[Bucket], params: &[ParamSpec]) -> Vec<(&'static str, Vec<F>)> {
        match self {
            Hook::PowerSgd(state) => {
                let (errors, rights) = state.hook_state(buckets, params);
                vec![("error", flat(buckets, params, &errors)), ("right", rights)]
            }
            Hook::TopK(state) => vec![("error", flat(buckets, params, state.errors().values()))],
            _ => Vec::new(),
        }
    }

    /// Continues from the state that [`Hook::hook_state`] returned.
    pub fn load_hook_state(&mut self, buckets: &[Bucket], params: &[ParamSpec], values: &[Vec<F>]) {
        match (self, values) {
            (Hook::PowerSgd(state), [errors, rights]) => {
                state.load_hook_state(buckets, params, split_by_bucket(buckets, params, errors), rights);
            }
            (Hook::TopK(state), [errors]) => state.errors_mut().set(split_by_bucket(buckets, params, errors)),
            _ => {}
        }
    }

    /// After a step under a loss scale: undoes a skipped step's changes of the state, and multiplies the error feedback, which is in
    /// units of the scale, by the factor by which the scale has changed.
    pub fn after_scaled(&mut self, skipped: bool, by: F) {
        match self {
            Hook::PowerSgd(state) if skipped => state.undo(),
            Hook::TopK(state) if skipped => state.errors_mut().undo(),
            _ => {}
        }
        match self {
            Hook::PowerSgd(state) if by != F::ONE => state.rescale(by),
            Hook::TopK(state) if by != F::ONE => state.errors_mut().rescale(by),
            _ => {}
        }
    }

    /// Begins the exchange of a bucket, as far as the hook can before other buckets are ready; in the same order on all ranks.
    ///
    /// # Errors
    /// If communication fails.
    pub fn send(
        &mut self,
        bucket: usize,
        buffer: Buffer<F>,
        comm: &Communicator,
    ) -> Result<BucketExchange<F>> {
        if !matches!(self, Hook::None | Hook::LocalSgd | Hook::PowerSgd(_) | Hook::Own(_)) {
            comm.charge(&work(compress_cost::<F>(buffer.len())));
        }
        Ok(match self {
            Hook::None => BucketExchange::Whole(comm.all_reduce_async(buffer, ReduceOp::Sum)?),
            Hook::LocalSgd => BucketExchange::Kept(buffer),
            Hook::PowerSgd(_) | Hook::Own(_) => BucketExchange::Later(buffer),
            Hook::Fp16 => {
                let mut narrow = Buffer::<f16>::zeroed(buffer.len());
                narrow.iter_mut().zip(&*buffer).for_each(|(to, &from)| *to = f16::from_f64(from.to_f64()));
                BucketExchange::Fp16(comm.all_reduce_async(narrow, ReduceOp::Sum)?, buffer)
            }
            Hook::Bf16 => {
                let mut narrow = Buffer::<bf16>::zeroed(buffer.len());
                narrow.iter_mut().zip(&*buffer).for_each(|(to, &from)| *to = bf16::from_f64(from.to_f64()));
                BucketExchange::Bf16(comm.all_reduce_async(narrow, ReduceOp::Sum)?, buffer)
            }
            Hook::Int8 => BucketExchange::Int8(comm.all_gather_async(int8::encode(&buffer))?, buffer),
            Hook::TopK(state) => {
                let (places, values) = state.encode(bucket, &buffer);
                BucketExchange::TopK(comm.all_gather_async(places)?, comm.all_gather_async(values)?, buffer)
            }
        })
    }

    /// Waits for a bucket that was sent. Returns its sum over ranks, and the time at which the sum was complete.
    ///
    /// # Errors
    /// If communication fails.
    pub fn finish(
        &mut self,
        sent: BucketExchange<F>,
        (index, bucket, params): (usize, &Bucket, &[ParamSpec]),
        comm: &Communicator,
    ) -> Result<(Buffer<F>, Picos)> {
        let ranks = comm.size() as usize;
        let (buffer, done) = match sent {
            BucketExchange::Whole(handle) => return Ok(handle.wait_timed()?),
            BucketExchange::Kept(buffer) => return Ok((buffer, comm.now())),
            BucketExchange::Later(mut buffer) => {
                match self {
                    Hook::PowerSgd(state) => state.exchange(index, bucket, params, &mut buffer, comm)?,
                    Hook::Own(own) => own.exchange(index, &mut buffer, comm)?,
                    _ => {}
                }
                return Ok((buffer, comm.now()));
            }
            BucketExchange::Fp16(handle, mut buffer) => {
                let (narrow, done) = handle.wait_timed()?;
                buffer.iter_mut().zip(&*narrow).for_each(|(to, from)| *to = F::from_f64(from.to_f64()));
                (buffer, done)
            }
            BucketExchange::Bf16(handle, mut buffer) => {
                let (narrow, done) = handle.wait_timed()?;
                buffer.iter_mut().zip(&*narrow).for_each(|(to, from)| *to = F::from_f64(from.to_f64()));
                (buffer, done)
            }
            BucketExchange::Int8(handle, mut buffer) => {
                let (all, done) = handle.wait_timed()?;
                int8::decode(&all, ranks, &mut buffer);
                (buffer, done)
            }
            BucketExchange::TopK(places, values, mut buffer) => {
                let (places, (values, done)) = (places.wait()?, values.wait_timed()?);
                topk::decode(&places, &values, &mut buffer);
                (buffer, done)
            }
        };
        comm.charge(&work(compress_cost::<F>(buffer.len())));
        Ok((buffer, done))
    }
}
