//! A layer table as [`StepCosts`]: a large network on a GPU.

use crate::clock::StepRules;
use crate::step::RankClass;
use crate::{
    DdpOptions, ElementPass, ExchangeModel, Overheads, SimulatedExchange, StepCosts, StepPrediction,
    predict_steps, step,
};
use allfold_collectives::Plan;
use allfold_sim::machines::GpuRates;
use allfold_sim::{Costs, Picos, Sharing, Topology};
use allfold_trainer::buckets::Caps;
use allfold_trainer::engine::Mesh;
use allfold_trainer::strategies::Driver;
use allfold_trainer::strategies::data_parallel::DataParallel;
use allfold_trainer::workloads::{KernelCost, Precision, Workload, moves};
use allfold_trainer::{NetworkTensors, Outline, ParamSpec, Phase, Result};
use std::sync::Arc;

/// The parameters of training a workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadTraining<'a> {
    /// The network that is trained.
    pub workload: &'a Workload,
    /// The device of each rank.
    pub gpu: &'a GpuRates,
    /// The precision of the kernels. Gradients are f32 in every precision, as with PyTorch's autocast.
    pub precision: Precision,
    /// Samples per rank and step.
    pub batch: usize,
    /// Micro-batches of a step; their gradients are accumulated and exchanged once.
    pub accumulate: usize,
    /// Whether batch norms normalise by the samples of all ranks.
    pub sync_batch_norm: bool,
    /// The sizes at which buckets close.
    pub caps: Caps,
    /// The measured rate of one device alone in samples per second, if there is one: every kernel's time is scaled so that the
    /// predicted rate is the measured one.
    pub measured: Option<f64>,
    /// Overheads in addition to kernels and links.
    pub terms: Overheads,
}

impl<'a> WorkloadTraining<'a> {
    /// PyTorch's defaults: buckets of 1 MiB, then 25 MiB; no accumulation.
    pub fn new(
        workload: &'a Workload,
        gpu: &'a GpuRates,
        precision: Precision,
        batch: usize,
    ) -> WorkloadTraining<'a> {
        WorkloadTraining {
            workload,
            gpu,
            precision,
            batch,
            accumulate: 1,
            sync_batch_norm: false,
            caps: Caps { first: 1 << 20, rest: 25 << 20 },
            measured: None,
            terms: Overheads::NONE,
        }
    }
}

/// One step of a workload over `ranks` ranks, with exchanges timed by `exchange`. A single rank exchanges nothing.
///
/// # Errors
/// An exchange that cannot be timed.
pub fn predict_workload(
    job: &WorkloadTraining<'_>,
    ranks: u32,
    exchange: &mut dyn ExchangeModel,
) -> Result<StepPrediction> {
    let mut prediction = Modeled::new(job, ranks, stretch(job)).step(ranks, exchange)?;
    job.terms.apply(&mut prediction);
    Ok(prediction)
}

/// One step of a workload by strategy `data_parallel`: the first rank sends the samples, each of the given number of `inputs`, collects
/// the `outputs` of each, and has the only optimiser.
///
/// # Errors
/// An exchange that cannot be timed.
pub fn predict_data_parallel(
    job: &WorkloadTraining<'_>,
    (inputs, outputs): (usize, usize),
    ranks: u32,
    exchange: &mut dyn ExchangeModel,
) -> Result<StepPrediction> {
    let costs = Modeled { inputs, outputs, ..Modeled::new(job, ranks, stretch(job)) };
    let (uneven, views, scaler, clip, norms, parts) = (false, false, false, false, false, false);
    let rules = StepRules { uneven, views, scaler, clip, norms, parts, staleness: 0, period: 1 };
    let class = RankClass { costs: &costs, batch: job.batch };
    let driver = |_| Ok(Box::new(DataParallel) as Box<dyn Driver>);
    let mut prediction = step::step((class, rules, Mesh::of_data(1, ranks)?), &driver, exchange)?;
    job.terms.apply(&mut prediction);
    Ok(prediction)
}

/// The device's time relative to the roofline: 1000 thousandths, or in billionths the factor with which one device reaches the
/// measured rate.
fn stretch(job: &WorkloadTraining<'_>) -> u128 {
    let Some(measured) = job.measured.filter(|rate| *rate > 0.0) else { return 1000 };
    let alone = Modeled::new(job, 1, MEASURED).alone();
    let wanted = job.batch as f64 / measured * 1e12;
    (wanted / alone.0.max(1) as f64 * MEASURED as f64).clamp(1.0, 1e18) as u128
}

/// The parts of one of a measured factor, so many that rounding does not matter.
const MEASURED: u128 = 1_000_000_000;

struct Modeled<'a> {
    job: &'a WorkloadTraining<'a>,
    outline: Arc<Outline>,
    /// The numbers of a sample, and of its output.
    inputs: usize,
    outputs: usize,
    /// The stretch factor in thousandths, or with a measurement in billionths.
    stretch: u128,
}

impl<'a> Modeled<'a> {
    /// The workload on one of `ranks` ranks. A single rank synchronises no batch norm.
    fn new(job: &'a WorkloadTraining<'a>, ranks: u32, stretch: u128) -> Modeled<'a> {
        let (table, synchronised) = (job.workload, job.sync_batch_norm && ranks > 1);
        let layers = table.layers();
        let phases = (table.forward_phases(synchronised), table.backward_phases(synchronised));
        let names = layers.iter().map(|layer| layer.name.clone()).collect();
        let costs = layers.iter().map(|layer| layer.forward.flops).collect();
        let outline = Arc::new(Outline::in_a_row(names, phases, table.values(), costs));
        Modeled { job, outline, inputs: 0, outputs: 0, stretch }
    }

    fn step(&self, ranks: u32, exchange: &mut dyn ExchangeModel) -> Result<StepPrediction> {
        let WorkloadTraining { batch, accumulate, precision, caps, .. } = *self.job;
        let scaler = ranks > 1 && precision == Precision::Half;
        let options = DdpOptions { batch, accumulate, caps: Some(caps), views: false, scaler };
        predict_steps(self, options, ranks, exchange)
    }

    /// The time of a step on one device, which exchanges nothing.
    fn alone(&self) -> Picos {
        let topology = Topology::named("switch", 1);
        let time = |topology: Topology| {
            let plan = Plan::default();
            let mut exchange = SimulatedExchange::new(&topology, Costs::default(), Sharing::default(), &plan);
            self.step(1, &mut exchange).ok()
        };
        topology.ok().and_then(time).map_or(Picos::ZERO, |step| step.time.total())
    }

    fn time(&self, kernel: &KernelCost, n: usize) -> Picos {
        self.stretched(kernel.time(self.job.gpu, n, self.job.precision))
    }

    fn stretched(&self, time: Picos) -> Picos {
        let scale = if self.job.measured.is_some() { MEASURED } else { 1000 };
        Picos(u64::try_from(u128::from(time.0) * self.stretch / scale).unwrap_or(u64::MAX))
    }

    /// The time to read or write `elements` f32 gradients `passes` times.
    fn moved(&self, elements: usize, passes: usize) -> Picos {
        moves(self.job.gpu, (elements * passes * 4) as u64)
    }
}

impl StepCosts for Modeled<'_> {
    fn outline(&self) -> Arc<Outline> {
        self.outline.clone()
    }
    fn params(&self) -> &[ParamSpec] {
        self.job.workload.places()
    }
    fn activation(&self, act: usize) -> usize {
        if act == 0 { self.inputs } else { self.outputs }
    }
    fn sync_len(&self, phase: Phase) -> usize {
        self.job.workload.sync_len(phase)
    }
    fn takes(&self, phase: Phase, n: usize) -> Picos {
        self.job.workload.kernel(phase).map_or(Picos::ZERO, |kernel| self.time(kernel, n))
    }
    fn over(&self, pass: ElementPass, elements: usize) -> Picos {
        let WorkloadTraining { workload, precision, .. } = self.job;
        match pass {
            ElementPass::Update => {
                let unscaled =
                    if *precision == Precision::Half { self.moved(elements, 2) } else { Picos::ZERO };
                self.stretched(self.moved(elements, workload.optimiser_passes()) + unscaled)
            }
            ElementPass::Unscale | ElementPass::Clip => Picos::ZERO,
            ElementPass::Accumulate => self.moved(elements, 3),
            ElementPass::Pack | ElementPass::Unpack => self.moved(elements, 2),
        }
    }
    fn element(&self) -> usize {
        4
    }
    fn tensors(&self) -> Option<&dyn NetworkTensors> {
        Some(self.job.workload)
    }
    /// Autocast keeps activations in the narrow type.
    fn activation_element(&self) -> usize {
        if self.job.precision == Precision::Half { 2 } else { 4 }
    }
    fn optimiser_state(&self) -> usize {
        self.job.workload.optimiser_passes().saturating_sub(3) / 2
    }
}
