//! What a rank that has all layers in one unit can do with its gradients: exchange them in buckets of parameters.

use crate::buckets::Bucket;
use crate::strategies::hooks::{BucketExchange, Hook};
use crate::{ParamSpec, Result};
use allfold_collectives::Buffer;
use allfold_kernels::nn::Float;
use std::ops::Range;

/// What a rank that has all layers in one unit can do besides a [`RankEngine`](super::RankEngine).
pub trait Bucketing {
    /// The parameters of the network, in order.
    fn params(&self) -> &[ParamSpec];

    /// The parameters that are trained but that the loss does not depend on: their gradients are zeros.
    fn unreached(&self) -> Vec<usize>;

    /// Bytes of an element of a gradient.
    fn element(&self) -> usize;

    /// From now on gradients are exchanged in these buckets, through the hook of the configuration.
    ///
    /// # Errors
    /// Several units.
    fn use_buckets(&mut self, buckets: &[Bucket]) -> Result<()>;

    /// Divides a parameter's final gradient by the number of ranks (by 1 for `local_sgd`), in place or on its way into its bucket.
    ///
    /// # Errors
    /// A gradient that the rank does not have, or that is in no bucket.
    fn fill(&mut self, param: usize) -> Result<()>;

    /// Starts the exchange of a bucket whose gradients are filled in. Every rank starts the same buckets in their order.
    ///
    /// # Errors
    /// Gradients that the rank does not have; failed communication.
    fn send_bucket(&mut self, bucket: usize) -> Result<()>;

    /// Waits for all buckets; the gradients are then the sums over all ranks, or what the hook makes of them.
    ///
    /// # Errors
    /// Failed communication.
    fn finish_buckets(&mut self) -> Result<()>;

    /// Replaces running statistics by those of the first rank of the data axis.
    ///
    /// # Errors
    /// Failed communication.
    fn broadcast_buffers(&mut self) -> Result<()>;

    /// Replaces the parameters by their means over the data axis, unless the step was skipped.
    ///
    /// # Errors
    /// Failed communication.
    fn average_params(&mut self) -> Result<()>;
}

/// The buckets of a rank, and their exchanges in progress.
pub(super) struct BucketState<F: Float> {
    pub buckets: Vec<Bucket>,
    /// For each parameter: its bucket, and its elements in that bucket. `None` for frozen parameters.
    pub slots: Vec<Option<(usize, Range<usize>)>>,
    /// The range of each bucket among the gradients, if buckets are views.
    pub views: Option<Vec<Range<usize>>>,
    /// The buckets' buffers while they are not in an exchange, if buckets are not views.
    pub filling: Vec<Option<Buffer<F>>>,
    pub hook: Hook<F>,
    /// The buckets that were sent, in order, and the number of their elements.
    pub under_way: Vec<BucketExchange<F>>,
    pub away: usize,
}

impl<F: Float> BucketState<F> {
    /// Bytes of gradients that are in an exchange as views; and of buckets that are no views and of the hook's state.
    pub fn bytes(&self) -> [u64; 2] {
        let filling = self.filling.iter().flatten().map(|buffer| buffer.len()).sum::<usize>();
        let (viewed, sent) = if self.views.is_some() { (self.away, 0) } else { (0, self.away) };
        [viewed, filling + sent + self.hook.elements()].map(|elements| (elements * size_of::<F>()) as u64)
    }
}
