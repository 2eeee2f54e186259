//! The table `[ddp]`: how gradients are exchanged: ddp's buckets, hooks and buffers.

use crate::{Error, Result};
use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// The sizes at which buckets are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Bytes that close the first bucket.
    pub first: u64,
    /// Bytes that close each further bucket.
    pub rest: u64,
}

/// How gradients are exchanged: ddp's buckets, hooks and buffers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct DdpConfig {
    /// Size of ddp's first bucket in KiB: the bucket closes once it holds this much; 0: it holds one parameter.
    pub first_bucket_kib: u64,
    /// Size of every further bucket in KiB; 0: each holds one parameter.
    pub bucket_kib: u64,
    /// How a bucket is compressed for the exchange: `none`, `fp16`, `bf16`, `powersgd`, `topk`, `int8` or `local_sgd`.
    pub hook: String,
    /// Rank of powersgd's matrices.
    pub powersgd_rank: usize,
    /// The fraction of a bucket's elements that topk sends.
    pub topk_share: f64,
    /// Steps between two averages of the weights with local_sgd.
    pub local_steps: u64,
    /// Parameter groups for ddp, as prefixes of parameter names: each group has its own buckets. Bucket sizes, hook and the order of
    /// sending are common to all groups.
    pub groups: Vec<String>,
    /// Whether ddp allows parameters that the loss does not depend on. A network is static, so they are known and nothing is searched
    /// for.
    pub find_unused: bool,
    /// The same as `ddp.find_unused`, by another name of PyTorch's. Set one of the two.
    pub static_graph: bool,
    /// Whether rank 0's running statistics are broadcast before every step, not only before evaluation.
    pub broadcast_buffers: bool,
}

impl Default for DdpConfig {
    fn default() -> DdpConfig {
        DdpConfig {
            first_bucket_kib: 1024,
            bucket_kib: 25 * 1024,
            hook: "none".into(),
            powersgd_rank: 2,
            topk_share: 0.01,
            local_steps: 4,
            groups: Vec::new(),
            find_unused: false,
            static_graph: false,
            broadcast_buffers: false,
        }
    }
}

impl DdpConfig {
    /// The sizes at which buckets close.
    pub fn caps(&self) -> Caps {
        Caps { first: self.first_bucket_kib.saturating_mul(1024), rest: self.bucket_kib.saturating_mul(1024) }
    }

    /// Checks that unused parameters are allowed by one name.
    pub(crate) fn check(&self) -> Result<()> {
        match self.find_unused && self.static_graph {
            true => {
                Err(Error("`ddp.static_graph` and `ddp.find_unused` mean the same: set one of them".into()))
            }
            false => Ok(()),
        }
    }
}
