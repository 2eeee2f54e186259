//! Distributed data parallel: every rank holds a replica and its own samples; gradients are averaged.
//!
//! ```text
//! compute        | forward ... | backward fc | conv2 | conv1 |.....| unpack | SGD |
//! communication                      | bucket 0 | bucket 1   | bucket 2 |
//!                                                            '-----' exposed: what backward did not hide
//! ```
//!
//! A gradient is divided by the number of ranks once, when it is final; the buckets are summed. A bucket is sent once its
//! gradients are final and the bucket before it was sent, so all ranks send in one order. With a canonical algorithm an element's
//! sum does not depend on the bucket that contains it, so neither do the weights. The engine places buckets in memory and calls the
//! hook ([`Bucketing`](crate::engine::Bucketing)).
//!
//! A network is static: the order in which gradients become ready, and the parameters that the loss does not depend on, are known
//! before the first step. PyTorch learns both during that step and rebuilds its buckets after it. (S. Li et al., "PyTorch
//! Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.)

use super::driver::DataSharing;
use crate::buckets::{Bucket, Caps, grouped};
use crate::engine::{Keep, RankEngine};
use crate::{Config, Error, Network, Phase, Result};
use allfold_kernels::nn::Float;

/// Gradients averaged in buckets over the parameters, during the backward pass.
pub struct Ddp {
    caps: Caps,
    groups: Vec<String>,
    broadcast_buffers: bool,
    /// Steps between two averages of the weights, where gradients are not exchanged.
    local_steps: Option<u64>,
    buckets: Vec<Bucket>,
    /// For each parameter: its bucket. `None` for frozen parameters.
    bucket_of: Vec<Option<usize>>,
    /// The number of missing gradients of each bucket in this step.
    missing: Vec<usize>,
    /// The number of buckets that were sent in this step.
    sent: usize,
}

/// Whether each rank has weights, and so optimiser state, of its own between two steps.
pub(crate) fn replicas_diverge(config: &Config) -> bool {
    config.strategy == "ddp" && config.ddp.hook == "local_sgd"
}

/// Refuses a network with parameters that its loss does not depend on, unless `config` allows them.
///
/// # Errors
/// Names the first such parameter.
pub(crate) fn fits_network<F: Float>(config: &Config, network: &Network<F>) -> Result<()> {
    let unreached = network.unreached();
    match unreached.first() {
        Some(&first) if config.strategy == "ddp" && !config.ddp.find_unused && !config.ddp.static_graph => {
            Err(Error::Config(format!(
                "{} of {} parameters have no gradient, `{}` first: the loss does not depend on them; set `ddp.find_unused` or \
                 `ddp.static_graph`",
                unreached.len(),
                network.params().len(),
                network.params()[first].name
            )))
        }
        _ => Ok(()),
    }
}

impl Ddp {
    /// The sharing with the buckets that `config` selects.
    pub fn new(config: &Config) -> Ddp {
        Ddp {
            caps: config.ddp.caps(),
            groups: config.ddp.groups.clone(),
            broadcast_buffers: config.ddp.broadcast_buffers,
            local_steps: replicas_diverge(config).then_some(config.ddp.local_steps),
            buckets: Vec::new(),
            bucket_of: Vec::new(),
            missing: Vec::new(),
            sent: 0,
        }
    }

    /// The sharing with buckets that close at these sizes.
    pub fn with_caps(caps: Caps) -> Ddp {
        Ddp { caps, ..Ddp::new(&Config::default()) }
    }

    /// A gradient is final: puts it into its bucket, and sends every full bucket that is next in order.
    fn fill(&mut self, on: &mut dyn RankEngine, param: usize) -> Result<()> {
        let Some(bucket) = self.bucket_of[param] else { return Ok(()) };
        on.fill(param)?;
        self.missing[bucket] -= 1;
        while self.missing.get(self.sent) == Some(&0) {
            on.send_bucket(self.sent)?;
            self.sent += 1;
        }
        Ok(())
    }
}

impl DataSharing for Ddp {
    fn keep(&self) -> Keep {
        Keep::Whole
    }

    fn is_one_unit(&self) -> bool {
        true
    }

    fn start(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        let ready = |phase: &Phase| if let Phase::Ready(param) = *phase { Some(param) } else { None };
        let mut order: Vec<usize> = on.outline().announced().iter().filter_map(ready).collect();
        order.extend(on.unreached());
        self.buckets = grouped(&order, on.params(), (on.element(), self.caps), &self.groups);
        self.bucket_of = vec![None; on.params().len()];
        for (at, bucket) in self.buckets.iter().enumerate() {
            bucket.params.iter().for_each(|&param| self.bucket_of[param] = Some(at));
        }
        on.use_buckets(&self.buckets)
    }

    fn begin(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        self.missing = self.buckets.iter().map(|bucket| bucket.params.len()).collect();
        self.sent = 0;
        if self.broadcast_buffers { on.broadcast_buffers() } else { Ok(()) }
    }

    fn announced(&mut self, on: &mut dyn RankEngine, param: usize, last: bool) -> Result<()> {
        if last { self.fill(on, param) } else { Ok(()) }
    }

    fn update(&mut self, on: &mut dyn RankEngine) -> Result<()> {
        for param in on.unreached() {
            // The loss does not depend on this parameter: its gradient is zeros.
            self.fill(on, param)?;
        }
        on.finish_buckets()?;
        on.update()?;
        match self.local_steps {
            Some(steps) if (on.step_number() + 1).is_multiple_of(steps) => on.average_params(),
            _ => Ok(()),
        }
    }
}
