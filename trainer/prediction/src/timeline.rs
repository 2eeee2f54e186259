//! A rank's two timelines through a step: compute and communication.

use super::{DdpOptions, ExchangeModel, StepCosts, StepPrediction};
use allfold_collectives::DType;
use allfold_sim::Picos;
use allfold_trainer::buckets::{Bucket, buckets_in, views};
use allfold_trainer::timing::{BucketTimes, StepBreakdown, communication};
use allfold_trainer::{Phase, Result};

/// Walks through a step and times its parts.
pub(super) struct Timeline<'a, S: StepCosts + ?Sized, X: ExchangeModel + ?Sized> {
    pub steps: &'a S,
    pub rules: DdpOptions,
    pub exchange: &'a mut X,
    pub ranks: u32,
}

/// A rank's two timelines.
#[derive(Default)]
struct Clock {
    /// The time on the compute timeline.
    now: Picos,
    /// When all communication so far is done.
    free: Picos,
    /// Time spent waiting so far.
    exposed: Picos,
}

/// A micro-batch of a step.
struct Micro {
    n: usize,
    /// Whether gradients of earlier micro-batches are held.
    accumulated: bool,
    /// Whether more micro-batches follow.
    more: bool,
}

impl<S: StepCosts + ?Sized, X: ExchangeModel + ?Sized> Timeline<'_, S, X> {
    pub fn step(&mut self) -> Result<StepPrediction> {
        let (steps, rules) = (self.steps, self.rules);
        let mut time = StepBreakdown { data: steps.data(rules.batch), ..StepBreakdown::default() };
        let ready = |phase| if let Phase::Ready(param) = phase { Some(param) } else { None };
        let order: Vec<usize> = steps.backward_phases().into_iter().filter_map(ready).collect();
        let buckets = rules
            .caps
            .map_or_else(Vec::new, |caps| buckets_in(&order, steps.params(), steps.element(), caps));
        let views = rules.views && views(&buckets, steps.params()).is_some();
        let (mut clock, mut log) = (Clock { now: time.data, ..Clock::default() }, Vec::new());
        for start in (0..rules.batch).step_by(rules.micro_batch.max(1)) {
            let n = rules.micro_batch.min(rules.batch - start);
            time.forward += self.forward(n, &mut clock)?;
            let micro = Micro { n, accumulated: start > 0, more: start + n < rules.batch };
            let began = (clock.now, clock.exposed);
            log = self.backward(micro, &mut clock, (&buckets, views))?;
            for (bucket, times) in buckets.iter().zip(&log) {
                let done = clock.now.later(times.done);
                clock.exposed += done - clock.now;
                clock.now = if views { done } else { done + steps.unpack(bucket.elements) };
            }
            time.backward += clock.now - began.0 - (clock.exposed - began.1);
        }
        time.exposed = clock.exposed;
        time.optimiser = steps.optimiser();
        if rules.scaler {
            time.optimiser += self.exchange.all_reduce(1, DType::U8)?;
        }
        Ok(StepPrediction {
            ranks: self.ranks,
            samples: rules.batch as u64 * u64::from(self.ranks),
            time,
            communication: communication(&log),
            buckets: log,
            engines: self.exchange.engines(),
        })
    }

    /// Walks the forward pass; returns its time without waiting.
    fn forward(&mut self, n: usize, clock: &mut Clock) -> Result<Picos> {
        let began = (clock.now, clock.exposed);
        for phase in self.steps.forward_phases() {
            clock.now += self.steps.takes(phase, n);
            self.total(phase, clock)?;
        }
        Ok(clock.now - began.0 - (clock.exposed - began.1))
    }

    /// Adds the sums over ranks of a phase, for which the step waits: they follow the buckets under way.
    fn total(&mut self, phase: Phase, clock: &mut Clock) -> Result<()> {
        let elements = self.steps.sync_len(phase);
        if elements > 0 && self.rules.caps.is_some() {
            let done = clock.free.later(clock.now) + self.exchange.all_reduce(elements, DType::F64)?;
            clock.exposed += done - clock.now;
            (clock.now, clock.free) = (done, done);
        }
        Ok(())
    }

    /// Walks the backward pass; sends each full bucket once the one before it is sent, and a view that is the last at the end.
    fn backward(
        &mut self,
        micro: Micro,
        clock: &mut Clock,
        (buckets, views): (&[Bucket], bool),
    ) -> Result<Vec<BucketTimes>> {
        let steps = self.steps;
        let (mut log, mut last) = (Vec::<BucketTimes>::new(), None);
        for phase in steps.backward_phases() {
            clock.now += steps.takes(phase, micro.n);
            self.total(phase, clock)?;
            let Phase::Ready(param) = phase else { continue };
            let elements = steps.params()[param].range.len();
            if micro.accumulated {
                clock.now += steps.accumulate(elements);
            }
            let Some(bucket) = buckets.get(log.len()).filter(|_| !micro.more) else { continue };
            clock.now += steps.pack(elements);
            // Gradients become ready in the order in which buckets are made.
            if bucket.params.last() != Some(&param) {
                continue;
            }
            if views && log.len() + 1 == buckets.len() {
                last = Some((bucket, clock.now));
            } else {
                log.push(self.sent(bucket, log.len(), clock, clock.now)?);
            }
        }
        if let Some((bucket, ready)) = last {
            log.push(self.sent(bucket, log.len(), clock, ready)?);
        }
        Ok(log)
    }

    /// Sends a bucket that became ready at this time.
    fn sent(&mut self, of: &Bucket, bucket: usize, clock: &mut Clock, ready: Picos) -> Result<BucketTimes> {
        let dtype = match self.steps.element() {
            8 => DType::F64,
            2 => DType::F16,
            _ => DType::F32,
        };
        clock.free = clock.free.later(clock.now) + self.exchange.all_reduce(of.elements, dtype)?;
        let bytes = (of.elements * self.steps.element()) as u64;
        Ok(BucketTimes { bucket, params: of.params.len(), bytes, ready, sent: clock.now, done: clock.free })
    }
}
