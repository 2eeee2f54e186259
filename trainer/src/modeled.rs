//! A data-parallel step without numbers: the same phases, buckets and costs as a real one, on clocks alone.
//!
//! ```text
//! compute        | data | forward | fc | conv2   | conv1 |        | unpack | SGD |
//! communication                        | bucket 0 |  bucket 1     |
//! ```
//!
//! One rank stands for all: they compute alike, so they enter every all-reduce together, and an all-reduce takes what
//! [`allfold_collectives::time`] says of its schedule on the topology. Where a schedule lets ranks finish at different
//! times (unequal chunks, folded rank counts), the last one's time is taken for all.

use crate::buckets::{Bucket, Caps, buckets};
use crate::model::hold_cost;
use crate::run::data_cost;
use crate::scaler::unscale_cost;
use crate::strategies::ddp::{pack_cost, unpack_cost};
use crate::timing::{Breakdown, BucketTimes, communication, work};
use crate::{Config, Network, Optimiser, Phase, Result, models, optim, strategies};
use allfold_collectives::time::{Engine, Job, simulate};
use allfold_collectives::{Collective, Element, Plan};
use allfold_kernels::nn::{Cost, Float};
use allfold_sim::{Costs, Device, Faults, Picos, Sharing, Topology};
use std::collections::BTreeMap;

/// What the step would run on.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// What each rank computes with.
    pub device: Device,
    /// What joins the ranks; it says how many there are.
    pub topology: &'a Topology,
    /// What messages and launches cost.
    pub costs: Costs,
    /// How flows share links.
    pub sharing: Sharing,
    /// Which algorithms run, as a communicator would choose them.
    pub plan: &'a Plan,
}

/// A step as it would be. Predicted: no number was computed and no byte sent.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Prediction {
    /// Ranks.
    pub ranks: u32,
    /// Samples of all ranks in one step.
    pub samples: u64,
    /// Where the time of the step goes.
    pub time: Breakdown,
    /// How long the communication timeline is busy, hidden or not.
    pub communication: Picos,
    /// What happens to each bucket, from the start of the step.
    pub buckets: Vec<BucketTimes>,
}

impl Prediction {
    /// Samples per second, over all ranks.
    pub fn throughput(&self) -> f64 {
        self.samples as f64 / self.time.total().as_secs()
    }
}

/// The step of `config` over samples of `shape` (channels, height, width).
///
/// # Errors
/// A configuration that makes no sense, or a schedule that cannot be timed.
pub fn predict(
    config: &Config,
    shape: (usize, usize, usize),
    classes: usize,
    machine: &Machine,
) -> Result<Prediction> {
    config.check()?;
    strategies::fits(config, machine.topology.ranks())?;
    match config.dtype.as_str() {
        "f64" => predict_as::<f64>(config, shape, classes, machine),
        _ => predict_as::<f32>(config, shape, classes, machine),
    }
}

fn predict_as<F: Float>(
    config: &Config,
    shape: (usize, usize, usize),
    classes: usize,
    machine: &Machine,
) -> Result<Prediction> {
    let network: Network<F> = models::build(config, shape, classes)?;
    let optimiser = optim::build(config, &network)?;
    let caps = if config.strategy == "single" { None } else { Some(config.caps()) };
    Timeline { config, network: &network, optimiser: &*optimiser, batch: config.batch, caps, machine }.step()
}

/// What a step is made of.
struct Timeline<'a, F> {
    config: &'a Config,
    network: &'a Network<F>,
    optimiser: &'a dyn Optimiser<F>,
    batch: usize,
    /// Where buckets close; `None`: nothing is exchanged.
    caps: Option<Caps>,
    machine: &'a Machine<'a>,
}

/// A rank's two timelines.
#[derive(Default)]
struct Clock {
    /// Where computing is.
    now: Picos,
    /// When communication has done all it was given.
    free: Picos,
    /// Time spent waiting so far.
    exposed: Picos,
}

/// A micro-batch of a step.
struct Micro {
    n: usize,
    /// Gradients of earlier ones are held.
    held: bool,
    /// Others follow.
    more: bool,
}

impl<F: Float> Timeline<'_, F> {
    fn step(&self) -> Result<Prediction> {
        let mut time = Breakdown {
            data: self.takes(data_cost::<F>(self.batch * self.network.inputs())),
            ..Breakdown::default()
        };
        let buckets =
            self.caps.map_or_else(Vec::new, |caps| buckets(self.network.params(), size_of::<F>(), caps));
        let size = self.config.micro_batch(self.batch);
        let (mut clock, mut log) = (Clock { now: time.data, ..Clock::default() }, Vec::new());
        for start in (0..self.batch).step_by(size) {
            let n = size.min(self.batch - start);
            time.forward += self.forward(n, &mut clock)?;
            let micro = Micro { n, held: start > 0, more: start + n < self.batch };
            let began = (clock.now, clock.exposed);
            log = self.backward(micro, &mut clock, &buckets)?;
            for (bucket, times) in buckets.iter().zip(&log) {
                let done = clock.now.later(times.done);
                clock.exposed += done - clock.now;
                clock.now = done + self.takes(unpack_cost::<F>(bucket.range.len()));
            }
            time.backward += clock.now - began.0 - (clock.exposed - began.1);
        }
        time.exposed = clock.exposed;
        let elements = self.network.param_count();
        time.optimiser = self.takes(self.optimiser.cost(elements));
        if self.config.scaler().is_some() {
            time.optimiser += self.takes(unscale_cost::<F>(elements)) + self.all_reduce::<u8>(1)?;
        }
        if self.config.clip_norm > 0.0 {
            time.optimiser += self.takes(optim::clip::cost::<F>(elements));
        }
        let ranks = self.machine.topology.ranks();
        Ok(Prediction {
            ranks,
            samples: self.batch as u64 * u64::from(ranks),
            time,
            communication: communication(&log),
            buckets: log,
        })
    }

    /// Walks the forward pass; returns what it takes without waiting.
    fn forward(&self, n: usize, clock: &mut Clock) -> Result<Picos> {
        let began = (clock.now, clock.exposed);
        for phase in self.network.forward_phases() {
            clock.now += self.takes(self.network.cost(phase, n));
            self.total(phase, clock)?;
        }
        Ok(clock.now - began.0 - (clock.exposed - began.1))
    }

    /// What the ranks add up in a phase, which the step waits for: after the buckets under way.
    fn total(&self, phase: Phase, clock: &mut Clock) -> Result<()> {
        let elements = self.network.shared(phase);
        if elements > 0 && self.caps.is_some() {
            let done = clock.free.later(clock.now) + self.all_reduce::<f64>(elements)?;
            clock.exposed += done - clock.now;
            (clock.now, clock.free) = (done, done);
        }
        Ok(())
    }

    /// Walks the backward pass; sends each bucket when it is full and its turn has come.
    fn backward(&self, micro: Micro, clock: &mut Clock, buckets: &[Bucket]) -> Result<Vec<BucketTimes>> {
        let mut log = Vec::<BucketTimes>::new();
        let mut spans = BTreeMap::new();
        for phase in self.network.backward_phases() {
            if matches!(phase, Phase::Ready(_)) && micro.more {
                continue;
            }
            clock.now += self.takes(self.network.cost(phase, micro.n));
            self.total(phase, clock)?;
            let Phase::Ready(param) = phase else { continue };
            let elements = self.network.params()[param].range.len();
            if micro.held {
                clock.now += self.takes(hold_cost::<F>(elements));
            }
            let Some(bucket) = buckets.get(log.len()) else { continue };
            clock.now += self.takes(pack_cost::<F>(elements));
            // Gradients come last parameter first and buckets are made in that order: the lowest one is the last.
            if param > bucket.params.start {
                continue;
            }
            let elements = bucket.range.len();
            let span = match spans.get(&elements) {
                Some(&span) => span,
                None => *spans.entry(elements).or_insert(self.all_reduce::<F>(elements)?),
            };
            clock.free = clock.free.later(clock.now) + span;
            log.push(BucketTimes {
                bucket: log.len(),
                params: bucket.params.len(),
                bytes: (elements * size_of::<F>()) as u64,
                ready: clock.now,
                sent: clock.now,
                done: clock.free,
            });
        }
        if micro.held && micro.more {
            clock.now += self.takes(hold_cost::<F>(self.network.param_count()));
        }
        Ok(log)
    }

    /// How long an all-reduce of so many elements takes from the moment all ranks have entered it.
    fn all_reduce<T: Element>(&self, elements: usize) -> Result<Picos> {
        let Machine { topology, costs, sharing, plan, .. } = *self.machine;
        let prepared = plan.of(Collective::AllReduce, topology.ranks(), elements, T::DTYPE)?;
        let job = Job {
            schedule: &*prepared.schedule,
            geometry: &prepared.geometry,
            element: size_of::<T>() as u32,
            topology,
            costs,
            window: prepared.window,
            sharing,
            faults: &Faults::NONE,
            collective: Some(Collective::AllReduce),
        };
        Ok(simulate(&job, Engine::Auto)?.time)
    }

    fn takes(&self, cost: Cost) -> Picos {
        self.machine.device.time(work(cost))
    }
}
