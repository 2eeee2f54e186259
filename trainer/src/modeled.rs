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
use crate::run::data_cost;
use crate::strategies::ddp::{pack_cost, unpack_cost};
use crate::timing::{Breakdown, BucketTimes, communication, work};
use crate::{Config, Network, Optimiser, Phase, Result, models, optim, strategies};
use allfold_collectives::time::{Engine, Job, simulate};
use allfold_collectives::{Collective, Plan};
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

impl<F: Float> Timeline<'_, F> {
    fn step(&self) -> Result<Prediction> {
        let data = self.takes(data_cost::<F>(self.batch * self.network.inputs()));
        let forward =
            self.network.forward_phases().map(|phase| self.takes(self.network.cost(phase, self.batch)));
        let forward = forward.fold(Picos::ZERO, |sum, time| sum + time);
        let mut now = data + forward;
        let buckets =
            self.caps.map_or_else(Vec::new, |caps| buckets(self.network.params(), size_of::<F>(), caps));
        let mut log = self.backward(&mut now, &buckets)?;

        let mut exposed = Picos::ZERO;
        for (bucket, times) in buckets.iter().zip(&mut log) {
            let done = now.later(times.done);
            exposed += done - now;
            now = done + self.takes(unpack_cost::<F>(bucket.range.len()));
        }
        let backward = now - data - forward - exposed;
        let elements = self.network.param_count();
        let mut optimiser = self.takes(self.optimiser.cost(elements));
        if self.config.clip_norm > 0.0 {
            optimiser += self.takes(optim::clip::cost::<F>(elements));
        }
        let ranks = self.machine.topology.ranks();
        Ok(Prediction {
            ranks,
            samples: self.batch as u64 * u64::from(ranks),
            time: Breakdown { data, forward, backward, exposed, optimiser },
            communication: communication(&log),
            buckets: log,
        })
    }

    /// Walks the backward pass from `now` on; sends each bucket when it is full and its turn has come.
    fn backward(&self, now: &mut Picos, buckets: &[Bucket]) -> Result<Vec<BucketTimes>> {
        let (mut log, mut free) = (Vec::<BucketTimes>::new(), Picos::ZERO);
        let mut spans = BTreeMap::new();
        for phase in self.network.backward_phases() {
            *now += self.takes(self.network.cost(phase, self.batch));
            let (Phase::Ready(param), Some(bucket)) = (phase, buckets.get(log.len())) else { continue };
            *now += self.takes(pack_cost::<F>(self.network.params()[param].range.len()));
            // Gradients come last parameter first and buckets are made in that order: the lowest one is the last.
            if param > bucket.params.start {
                continue;
            }
            let elements = bucket.range.len();
            let span = match spans.get(&elements) {
                Some(&span) => span,
                None => *spans.entry(elements).or_insert(self.all_reduce(elements)?),
            };
            free = free.later(*now) + span;
            log.push(BucketTimes {
                bucket: log.len(),
                params: bucket.params.len(),
                bytes: (elements * size_of::<F>()) as u64,
                ready: *now,
                sent: *now,
                done: free,
            });
        }
        Ok(log)
    }

    /// How long an all-reduce of so many elements takes from the moment all ranks have entered it.
    fn all_reduce(&self, elements: usize) -> Result<Picos> {
        let Machine { topology, costs, sharing, plan, .. } = *self.machine;
        let prepared = plan.of(Collective::AllReduce, topology.ranks(), elements, F::DTYPE)?;
        let job = Job {
            schedule: &*prepared.schedule,
            geometry: &prepared.geometry,
            element: size_of::<F>() as u32,
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
