//! Scaling curves of large networks, from their layer tables.

use crate::predict::exchanges::Exchanges;
use crate::training::records::held;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_collectives::Plan;
use allfold_prediction::{
    ExchangeModel, NcclModel, Overheads, SimulatedExchange, StepPrediction, WorkloadTraining,
    predict_workload,
};
use allfold_report::records::{RankMemory, Setup, SimulatedScale};
use allfold_sim::machines::GpuRates;
use allfold_sim::{Sharing, Topology};
use allfold_trainer::workloads::{Precision, Workload};

/// The workload and the machine of a scaling curve.
pub struct WorkloadScaling {
    /// The layer table that is trained.
    pub workload: Workload,
    /// The machine, as `--topology` names it.
    pub topology: String,
    /// The device of each rank.
    pub gpu: &'static GpuRates,
    /// The precision of the kernels.
    pub precision: Precision,
    /// Samples per rank and step; in strong scaling, of all ranks together.
    pub batch: usize,
    /// Whether the batch is divided among all ranks (strong scaling).
    pub strong: bool,
    /// The number of micro-batches of a step.
    pub accumulate: usize,
    /// Whether batch norms normalise by the samples of all ranks.
    pub sync_batch_norm: bool,
    /// The measured rate of one device in samples per second, if given.
    pub measured: Option<f64>,
    /// Overheads besides kernels and links.
    pub terms: Overheads,
    /// The model that times the exchanges.
    pub collectives: Exchanges,
}

impl WorkloadScaling {
    /// The time of one point; `None` in strong scaling if a rank would have no sample.
    ///
    /// # Errors
    /// An unknown topology, or one without this many ranks; an exchange that cannot be timed.
    pub fn point(&self, ranks: u32) -> CommandResult<Option<SimulatedScale>> {
        let batch = if self.strong { self.batch / ranks as usize } else { self.batch };
        if batch == 0 {
            return Ok(None);
        }
        let prediction = self.predict(ranks, batch)?;
        if !(1e-6..=1e6).contains(&prediction.time.total().as_secs()) {
            return Err(CommandError::usage(format!(
                "a step of {batch} samples on each rank takes less than 1 us or more than 11 days, which is not predicted; take another \
                 --batch, --single-gpu-rate or --input-rate"
            )));
        }
        Ok(Some(SimulatedScale {
            setup: Setup {
                backend: "modeled".into(),
                device: self.gpu.name.clone(),
                model: format!("{} ({})", self.workload.name(), self.precision.name()),
                strategy: "ddp".into(),
                ranks,
                mesh: Setup::data_parallel(ranks),
            },
            batch: batch as u64,
            topology: format!("{} of {}", self.topology, self.gpu.name),
            time_us: prediction.time.total().as_micros(),
            exposed_us: prediction.time.exposed.as_micros(),
            samples_per_s: prediction.throughput(),
            memory: prediction.peak().map(|peak| self.classes(held(peak), batch)),
            device_memory: Some(self.gpu.capacity_bytes()),
            engines: prediction.engines,
            ..SimulatedScale::default()
        }))
    }

    /// The memory of a rank at its peak, with what the backward pass of `batch` samples needs as activations. A prediction counts buffers of
    /// activations that are free again among the gradients of activations.
    fn classes(&self, peak: RankMemory, batch: usize) -> RankMemory {
        let samples = batch.div_ceil(self.accumulate.max(1)) as u64;
        let kept = self.workload.kept() * samples * self.precision.bytes();
        let free = kept.saturating_sub(peak.activations).min(peak.activation_gradients);
        RankMemory {
            activations: peak.activations + free,
            activation_gradients: peak.activation_gradients - free,
            ..peak
        }
    }

    /// Predicts the step of `ranks` ranks with `batch` samples each.
    ///
    /// # Errors
    /// As [`WorkloadScaling::point`].
    pub fn predict(&self, ranks: u32, batch: usize) -> CommandResult<StepPrediction> {
        let job = WorkloadTraining {
            accumulate: self.accumulate,
            sync_batch_norm: self.sync_batch_norm,
            measured: self.measured,
            terms: self.terms,
            ..WorkloadTraining::new(&self.workload, self.gpu, self.precision, batch)
        };
        let topology = Topology::named(&self.topology, ranks).map_err(CommandError::usage)?;
        let plan = Plan::default();
        let system = self.collectives.system(&self.topology, ranks)?;
        let simulated = SimulatedExchange::new(&topology, topology.costs(), Sharing::default(), &plan);
        let mut exchange: Box<dyn ExchangeModel + '_> = match &system {
            Some(system) => Box::new(NcclModel::new(system, simulated)),
            None => Box::new(simulated),
        };
        predict_workload(&job, ranks, &mut *exchange).map_err(CommandError::run)
    }
}

/// The length of the longest range of consecutive counts that is kept whole.
const SHORT: usize = 16;

/// Counts of ranks that a curve is drawn at: of a longer range only the powers of two, the first and the last; else all counts.
pub fn thinned(counts: &[u32]) -> Vec<u32> {
    let ranges = counts.chunk_by(|a, b| a + 1 == *b);
    let of = |range: &[u32]| {
        let ends = [range.first().copied(), range.last().copied()];
        let keep =
            |ranks: &u32| range.len() <= SHORT || ranks.is_power_of_two() || ends.contains(&Some(*ranks));
        range.iter().copied().filter(keep).collect::<Vec<u32>>()
    };
    ranges.flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaling(topology: &str, collectives: Exchanges) -> WorkloadScaling {
        WorkloadScaling {
            workload: Workload::named("resnet50").unwrap(),
            topology: topology.into(),
            gpu: GpuRates::named("A100 SXM").unwrap(),
            precision: Precision::Half,
            batch: 128,
            strong: false,
            accumulate: 1,
            sync_batch_norm: false,
            measured: None,
            terms: Overheads::NONE,
            collectives,
        }
    }

    #[test]
    fn all_ways_of_timing_an_exchange_are_alike() {
        for machine in ["dgx-a100", "hgx-h100"] {
            for ranks in [8, 64] {
                let times = [Exchanges::Simulated, Exchanges::Nccl, Exchanges::Tuner].map(|collectives| {
                    scaling(machine, collectives).predict(ranks, 128).unwrap().communication.as_secs()
                });
                let factor =
                    times[1..].iter().map(|time| (times[0] / time).max(time / times[0])).fold(1.0, f64::max);
                assert!(factor < 3.0, "{machine} {ranks}: {times:?}");
            }
        }
    }

    /// Options of a machine change NCCL's times as they change the simulated ones; switches are refused.
    #[test]
    fn nccl_has_the_machine_s_options() {
        let time = |topology: &str| {
            scaling(topology, Exchanges::Nccl).predict(64, 8).map(|step| step.communication.as_secs())
        };
        let whole = time("dgx-a100").unwrap();
        for slower in [
            "dgx-a100,nic-bandwidth=10Gb/s",
            "dgx-a100,nics=1",
            "dgx-a100,fabric=tcp",
            "dgx-a100,nvlink-bandwidth=20GB/s",
            // Two GPUs of a node have their own two NICs, not all eight.
            "dgx-a100,devices=2",
        ] {
            let slow = time(slower).unwrap();
            assert!(slow > 1.02 * whole, "{slower}: {slow} s, {whole} s");
        }
        let Err(CommandError::Usage(said)) = time("dgx-a100,fat-tree=2:1") else { panic!("not refused") };
        assert!(said.contains("leave out fat-tree"), "{said}");
    }

    #[test]
    fn a_hundred_thousand_ranks_are_one_point_among_others() {
        let point = scaling("dgx-a100", Exchanges::Simulated).point(131_072).unwrap().unwrap();
        assert!(point.samples_per_s > 0.0 && point.engines.iter().any(|engine| engine.contains("rounded")));
        let strong =
            WorkloadScaling { strong: true, batch: 256, ..scaling("dgx-a100", Exchanges::Simulated) };
        assert_eq!(strong.point(512).unwrap(), None);
        assert_eq!(strong.point(64).unwrap().unwrap().batch, 4);
    }

    #[test]
    fn long_ranges_are_thinned() {
        assert_eq!(thinned(&(1..=1000).collect::<Vec<_>>()).len(), 11);
        assert_eq!(thinned(&[3, 5]), [3, 5]);
        assert_eq!(thinned(&(1..=64).collect::<Vec<_>>()), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(thinned(&(1..=16).collect::<Vec<_>>()).len(), 16);
        assert_eq!(thinned(&[1, 3, 100, 1000]), [1, 3, 100, 1000]);
    }

    /// Where nothing is named, exchanges are NCCL's on a machine that its model has with all of the ranks.
    #[test]
    fn exchanges_are_nccl_s_on_its_machines() {
        for (topology, counts, want) in [
            ("hgx-h100", &[1, 8, 64][..], Exchanges::Nccl),
            ("hgx-h100:2", &[1, 8, 24], Exchanges::Simulated),
            ("hgx-h100", &[8, 12], Exchanges::Simulated),
            ("hgx-h100,fat-tree=2:1", &[8], Exchanges::Simulated),
            ("nodes8", &[8], Exchanges::Simulated),
        ] {
            assert_eq!(Exchanges::of(None, topology, counts), want, "{topology} {counts:?}");
            assert_eq!(Exchanges::of(Some(Exchanges::Tuner), topology, counts), Exchanges::Tuner);
        }
        let Err(CommandError::Usage(said)) = Exchanges::Nccl.system("nodes8", 8) else {
            panic!("not refused")
        };
        assert!(said.contains("--collectives simulated"), "{said}");
    }
}
