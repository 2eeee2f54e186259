//! A layer table as [`StepCosts`]: a large network on an accelerator.

use super::timeline::Timeline;
use super::{DdpOptions, ExchangeModel, Overheads, StepCosts, StepPrediction};
use allfold_sim::Picos;
use allfold_trainer::buckets::Caps;
use allfold_trainer::workloads::{Accelerator, KernelCost, Precision, Workload};
use allfold_trainer::{ParamSpec, Phase, Result};

/// The parameters of training a workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadTraining<'a> {
    /// The network that is trained.
    pub workload: &'a Workload,
    /// The device of each rank.
    pub accelerator: &'a Accelerator,
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
    /// Overheads besides kernels and links.
    pub terms: Overheads,
}

impl<'a> WorkloadTraining<'a> {
    /// PyTorch's defaults: buckets of 1 MiB, then 25 MiB; no accumulation.
    pub fn new(
        workload: &'a Workload,
        accelerator: &'a Accelerator,
        precision: Precision,
        batch: usize,
    ) -> WorkloadTraining<'a> {
        WorkloadTraining {
            workload,
            accelerator,
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
    let modeled = Modeled { job, stretch: stretch(job) };
    let mut prediction = modeled.step(ranks, exchange)?;
    job.terms.apply(&mut prediction);
    Ok(prediction)
}

/// The device's time relative to the roofline: 1000 thousandths, or in millionths the factor with which one device reaches the
/// measured rate.
fn stretch(job: &WorkloadTraining<'_>) -> u128 {
    let Some(measured) = job.measured.filter(|rate| *rate > 0.0) else { return 1000 };
    let modeled = Modeled { job, stretch: 1_000_000 };
    let alone = modeled.alone();
    let wanted = job.batch as f64 / measured * 1e12;
    // The measured factor is in millionths, so that rounding does not matter.
    (wanted / alone.0.max(1) as f64 * 1e6).clamp(1.0, 1e12) as u128
}

struct Modeled<'a> {
    job: &'a WorkloadTraining<'a>,
    /// The stretch factor in thousandths, or with a measurement in millionths.
    stretch: u128,
}

impl Modeled<'_> {
    fn step(&self, ranks: u32, exchange: &mut dyn ExchangeModel) -> Result<StepPrediction> {
        let job = self.job;
        let micro_batch = job.batch.div_ceil(job.accumulate.max(1)).max(1);
        let caps = (ranks > 1).then_some(job.caps);
        let scaler = ranks > 1 && job.precision == Precision::Half;
        let rules = DdpOptions { batch: job.batch, micro_batch, caps, views: false, scaler };
        Timeline { steps: self, rules, exchange, ranks }.step()
    }

    /// The time of a step on one device.
    fn alone(&self) -> Picos {
        struct Never;
        impl ExchangeModel for Never {
            fn all_reduce(&mut self, _: usize, _: allfold_collectives::DType) -> Result<Picos> {
                Ok(Picos::ZERO)
            }
            fn engines(&self) -> Vec<String> {
                Vec::new()
            }
        }
        self.step(1, &mut Never).map_or(Picos::ZERO, |prediction| prediction.time.total())
    }

    fn time(&self, kernel: &KernelCost, n: usize) -> Picos {
        let time = self.job.accelerator.time(kernel, n, self.job.precision);
        self.stretched(time)
    }

    fn stretched(&self, time: Picos) -> Picos {
        let scale = if self.job.measured.is_some() { 1_000_000 } else { 1000 };
        Picos(u64::try_from(u128::from(time.0) * self.stretch / scale).unwrap_or(u64::MAX))
    }

    /// The time to read or write `elements` f32 gradients `passes` times.
    fn moved(&self, elements: usize, passes: usize) -> Picos {
        self.job.accelerator.moves((elements * passes * 4) as u64, 1)
    }
}

impl StepCosts for Modeled<'_> {
    fn params(&self) -> &[ParamSpec] {
        self.job.workload.places()
    }
    fn forward_phases(&self) -> Vec<Phase> {
        self.job.workload.forward_phases(self.job.sync_batch_norm)
    }
    fn backward_phases(&self) -> Vec<Phase> {
        self.job.workload.backward_phases(self.job.sync_batch_norm)
    }
    fn sync_len(&self, phase: Phase) -> usize {
        if self.job.sync_batch_norm { self.job.workload.sync_len(phase) } else { 0 }
    }
    fn takes(&self, phase: Phase, n: usize) -> Picos {
        self.job.workload.kernel(phase).map_or(Picos::ZERO, |kernel| self.time(kernel, n))
    }
    fn data(&self, _: usize) -> Picos {
        Picos::ZERO
    }
    fn optimiser(&self) -> Picos {
        let passes = self.job.workload.optimiser_passes();
        let elements = self.elements();
        let unscaled =
            if self.job.precision == Precision::Half { self.moved(elements, 2) } else { Picos::ZERO };
        self.stretched(self.moved(elements, passes) + unscaled)
    }
    fn accumulate(&self, elements: usize) -> Picos {
        self.moved(elements, 3)
    }
    fn pack(&self, elements: usize) -> Picos {
        self.moved(elements, 2)
    }

    fn unpack(&self, elements: usize) -> Picos {
        self.moved(elements, 2)
    }
    fn element(&self) -> usize {
        4
    }
}
