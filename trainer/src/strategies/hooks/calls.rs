//! What a hook does to exchange a bucket, for predictions: the work and the collectives, without the values.

use super::{ADDED, powersgd, topk};
use crate::buckets::Bucket;
use crate::{Config, Error, ParamSpec, Result};
use allfold_collectives::{Collective, DType};
use allfold_kernels::nn::{Float, OpCost};

/// A part of a bucket's exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HookCall {
    /// The rank computes.
    Work(OpCost),
    /// All ranks exchange this number of elements each.
    Collective(Collective, usize, DType),
}

/// How a hook exchanges a bucket.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HookCalls {
    /// The calls when the bucket is full. Collectives are started and not waited for.
    pub sent: Vec<HookCall>,
    /// The calls when the bucket is waited for, after the collectives of `sent`. Each call ends before the next
    /// begins.
    pub finished: Vec<HookCall>,
    /// Elements that the hook keeps for the bucket from one step to the next.
    pub kept: usize,
}

/// Checks that the hook of `config` does what [`calls`] says.
///
/// # Errors
/// Hooks that the program added.
pub fn check_predicted(config: &Config) -> Result<()> {
    match ADDED.find(&config.ddp.hook) {
        None => Ok(()),
        Some(_) => Err(Error::Config(format!(
            "`ddp.hook` is {}, whose exchange cannot be predicted: run it on the virtual clock",
            config.ddp.hook
        ))),
    }
}

/// What the hook of `config` does with a bucket; `None` if the bucket is summed as it is.
pub fn calls<F: Float>(config: &Config, bucket: &Bucket, params: &[ParamSpec]) -> Option<HookCalls> {
    use Collective::{AllGather, AllReduce};
    let n = bucket.elements;
    // State that a skipped step may undo is stored twice.
    let copies = if config.precision.loss_scale > 0.0 { 2 } else { 1 };
    let compressed = |collectives: &[HookCall]| {
        let work = HookCall::Work(compress_cost::<F>(n));
        HookCalls { sent: [&[work], collectives].concat(), finished: vec![work], kept: 0 }
    };
    Some(match config.ddp.hook.as_str() {
        // The sharing exchanges weights, and no gradients are exchanged.
        "local_sgd" => HookCalls::default(),
        "fp16" => compressed(&[HookCall::Collective(AllReduce, n, DType::F16)]),
        "bf16" => compressed(&[HookCall::Collective(AllReduce, n, DType::Bf16)]),
        "int8" => compressed(&[HookCall::Collective(AllGather, super::int8::HEAD + n, DType::U8)]),
        "topk" => {
            let k = topk::sent_of(n, config.ddp.topk_share);
            let of = |dtype| HookCall::Collective(AllGather, k, dtype);
            HookCalls { kept: copies * n, ..compressed(&[of(DType::I32), of(F::DTYPE)]) }
        }
        "powersgd" => {
            let sums = powersgd::sums(config.ddp.powersgd_rank, bucket, params);
            let mut finished: Vec<HookCall> =
                sums.into_iter().map(|count| HookCall::Collective(AllReduce, count, F::DTYPE)).collect();
            finished.push(HookCall::Work(powersgd::cost::<F>(config.ddp.powersgd_rank, n)));
            let kept = copies * (n + sums[2]);
            HookCalls { sent: Vec::new(), finished, kept }
        }
        _ => return None,
    })
}

/// The cost of compressing `elements`, or of decompressing them.
pub(super) fn compress_cost<F>(elements: usize) -> OpCost {
    OpCost::launch(2 * elements, 2 * elements, size_of::<F>())
}
