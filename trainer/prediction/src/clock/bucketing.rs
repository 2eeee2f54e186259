//! Gradients in buckets, on a clock.

use super::ClockRank;
use super::exchanges::Pending;
use crate::ElementPass;
use allfold_collectives::Collective;
use allfold_sim::Picos;
use allfold_trainer::buckets::{Bucket, views};
use allfold_trainer::engine::{Bucketing, MeshAxis, RankEngine};
use allfold_trainer::strategies::hooks::{HookCall, HookCalls};
use allfold_trainer::timing::{BucketTimes, StepWork};
use allfold_trainer::{Error, ParamSpec, Result};

/// The buckets, and the exchanges of those that were sent.
pub(super) struct ClockBuckets {
    buckets: Vec<Bucket>,
    /// Whether buckets are views of the gradients: nothing is copied, and the last one is sent when the backward pass has ended.
    views: bool,
    /// How each bucket is exchanged, if a hook does it.
    hook: Vec<Option<HookCalls>>,
    under_way: Vec<Pending>,
}

impl ClockRank<'_> {
    fn buckets(&mut self) -> Result<&mut ClockBuckets> {
        self.bucketing
            .as_mut()
            .ok_or_else(|| Error::Strategy("the strategy exchanges buckets that it has not named".into()))
    }

    /// Starts the exchange of a bucket. Returns its last part.
    fn reduce_bucket(&mut self, bucket: usize) -> Result<Pending> {
        let elements = self.buckets()?.buckets[bucket].elements;
        let sum = HookCall::Collective(Collective::AllReduce, elements, self.with.dtype());
        let calls = self.buckets()?.hook[bucket].as_ref().map_or_else(|| vec![sum], |hook| hook.sent.clone());
        let mut last = Pending::At(self.clock.now);
        for call in calls {
            last = self.exchanges.hook_call(&mut self.clock, call)?;
        }
        Ok(last)
    }

    /// Waits for the exchange of a bucket, and does what its hook does then. Returns when the sum is complete.
    fn finish_bucket(&mut self, bucket: usize, exchange: Pending) -> Result<Picos> {
        let Some(HookCalls { sent, finished, .. }) = self.buckets()?.hook[bucket].clone() else {
            return self.wait(exchange);
        };
        // A real rank counts this whole time as waiting.
        let start = self.clock.now;
        let done = self.exchanges.end(exchange, self.clock.now)?;
        self.clock.now = self.clock.now.later(done);
        for call in finished {
            let part = self.exchanges.hook_call(&mut self.clock, call)?;
            self.clock.now = self.clock.now.later(self.exchanges.end(part, self.clock.now)?);
        }
        self.clock.time.exposed += self.clock.now - start;
        self.clock.did(StepWork::Waiting, None, start);
        Ok(if sent.is_empty() { self.clock.now } else { done })
    }
}

impl Bucketing for ClockRank<'_> {
    fn params(&self) -> &[ParamSpec] {
        self.with.costs.params()
    }

    fn unreached(&self) -> Vec<usize> {
        self.with.costs.unreached()
    }

    fn element(&self) -> usize {
        self.with.costs.element()
    }

    fn use_buckets(&mut self, buckets: &[Bucket]) -> Result<()> {
        if self.units.len() != 1 {
            return Err(Error::Strategy("buckets need all layers in one unit".into()));
        }
        let views = self.with.rules.views && views(buckets, self.with.costs.params()).is_some();
        let hook: Vec<Option<HookCalls>> =
            buckets.iter().map(|bucket| self.with.costs.hook_calls(bucket)).collect();
        let own: usize = if views { 0 } else { buckets.iter().map(|bucket| bucket.elements).sum() };
        let kept: usize = hook.iter().flatten().map(|hook| hook.kept).sum();
        let bytes = ((own + kept) * self.with.costs.element()) as u64;
        self.memory.iter_mut().for_each(|memory| memory.use_buckets(bytes));
        self.bucketing = Some(ClockBuckets { buckets: buckets.to_vec(), views, hook, under_way: Vec::new() });
        Ok(())
    }

    fn fill(&mut self, param: usize) -> Result<()> {
        let takes = self.with.costs.over(ElementPass::Pack, self.with.costs.params()[param].range.len());
        self.clock.does(StepWork::Divide, None, takes);
        Ok(())
    }

    fn send_bucket(&mut self, bucket: usize) -> Result<()> {
        let (now, element) = (self.clock.now, self.element());
        let ClockBuckets { buckets, views, .. } = self.buckets()?;
        let (last, own) = (*views && bucket + 1 == buckets.len(), &buckets[bucket]);
        let (params, bytes) = (own.params.len(), (own.elements * element) as u64);
        self.clock.log.push(BucketTimes { bucket, params, bytes, ready: now, sent: now, done: now });
        if !last {
            let exchange = self.reduce_bucket(bucket)?;
            self.buckets()?.under_way.push(exchange);
        }
        Ok(())
    }

    fn finish_buckets(&mut self) -> Result<()> {
        let state = self.buckets()?;
        let (views, last) = (state.views, state.buckets.len().checked_sub(1));
        for (at, exchange) in std::mem::take(&mut state.under_way).into_iter().enumerate() {
            self.clock.log[at].done = self.finish_bucket(at, exchange)?;
            if !views {
                let takes = self.with.costs.over(ElementPass::Unpack, self.buckets()?.buckets[at].elements);
                self.clock.does(StepWork::Divide, None, takes);
            }
        }
        if let Some(last) = last.filter(|_| views) {
            let sent = self.clock.now;
            let exchange = self.reduce_bucket(last)?;
            let done = self.wait(exchange)?;
            (self.clock.log[last].sent, self.clock.log[last].done) = (sent, done);
        }
        Ok(())
    }

    fn broadcast_buffers(&mut self) -> Result<()> {
        let data = self.exchanges.along(MeshAxis::Data);
        self.run_collective(data, Collective::Broadcast, self.with.costs.buffers(), self.with.dtype())
    }

    fn average_params(&mut self) -> Result<()> {
        let data = self.exchanges.along(MeshAxis::Data);
        for unit in 0..self.units().len() {
            self.run_collective(
                data,
                Collective::AllReduce,
                self.units[unit].layout.padded,
                self.with.dtype(),
            )?;
        }
        Ok(())
    }
}
