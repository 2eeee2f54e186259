//! Scaling curves of large networks, from their layer tables.

use crate::training::records::held;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_collectives::Plan;
use allfold_nccl_model::{Arch, Graph, HostCpu, Inside, Overrides, Platform};
use allfold_prediction::{
    ExchangeModel, NcclModel, Overheads, SimulatedExchange, StepPrediction, WorkloadTraining,
    predict_workload,
};
use allfold_report::records::{Setup, SimulatedScale};
use allfold_sim::machines::presets::{FABRIC_FIGURES, Preset};
use allfold_sim::machines::{Generation, GpuModel, GpuRates};
use allfold_sim::{Sharing, Topology};
use allfold_trainer::workloads::{Precision, Workload};

/// The model that times the exchanges.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collectives {
    /// Allfold's own schedules, simulated on the topology
    Simulated,
    /// The time that NCCL's tuner estimates for the algorithm that it would choose
    Nccl,
}

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
    pub collectives: Collectives,
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
            time_error_us: 0.0,
            exposed_us: prediction.time.exposed.as_micros(),
            exchange: None,
            samples_per_s: prediction.throughput(),
            efficiency: 0.0,
            memory: prediction.peak().map(held),
            device_memory: Some(self.gpu.capacity_bytes()),
            engines: prediction.engines,
        }))
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
        let mut exchange: Box<dyn ExchangeModel + '_> = match self.collectives {
            Collectives::Simulated => {
                Box::new(SimulatedExchange::new(&topology, topology.costs(), Sharing::default(), &plan))
            }
            Collectives::Nccl => {
                Preset::check_flat(&self.topology).map_err(CommandError::usage)?;
                let preset = machine(&self.topology)?;
                Box::new(NcclModel::new(platform(&preset, ranks)?, Overrides::default()))
            }
        };
        predict_workload(&job, ranks, &mut *exchange).map_err(CommandError::run)
    }
}

/// The machine that a topology names, with its options.
///
/// # Errors
/// A topology that names no known machine, or has a wrong option.
pub fn machine(topology: &str) -> CommandResult<Preset> {
    Preset::with_options(topology).map_err(CommandError::usage)
}

/// A machine as NCCL's tuner sees it: a channel for each NVLink of a device, sharing the node's NICs.
///
/// # Errors
/// A machine of AMD's GPUs, which NCCL does not drive.
pub fn platform(preset: &Preset, ranks: u32) -> CommandResult<Platform> {
    let nodes = ranks.div_ceil(preset.devices);
    let generation = GpuModel::all().iter().find(|gpu| gpu.name == preset.gpu).map(|gpu| gpu.generation);
    let arch = match generation {
        Some(Generation::Volta) | None => Arch::Volta,
        Some(Generation::Ampere) => Arch::Ampere,
        Some(Generation::Hopper) => Arch::Hopper,
        Some(Generation::Blackwell) => Arch::Blackwell,
        Some(Generation::Cdna) => {
            return Err(CommandError::usage(format!(
                "NCCL does not run on {}, a GPU of AMD: use --collectives simulated",
                preset.gpu
            )));
        }
    };
    let share = FABRIC_FIGURES
        .iter()
        .find(|fabric| fabric.name == preset.nics.fabric)
        .map_or(1.0, |fabric| fabric.share);
    let network = f64::from(preset.nics.count) * preset.nics.bandwidth.gb_per_s() * share;
    let (channels, inside) = match &preset.nvlink {
        Some(nvlink) => (nvlink.links().max(1), nvlink.bandwidth.gb_per_s()),
        None => (2, preset.pcie.bandwidth.gb_per_s() / 2.0),
    };
    let across = |channels: u32, inside: f64| (network / f64::from(channels)).min(inside);
    let graph = Graph::inside(channels, inside).across(across(channels, inside));
    let switched = preset.nvlink.as_ref().is_some_and(|nvlink| nvlink.switched.is_some());
    let port = f64::from(channels) * inside;
    let nvls = (switched && arch >= Arch::Hopper)
        .then(|| Graph::inside(16, port / 16.0).across(across(16, port / 16.0)));
    Ok(Platform {
        cpu: if preset.pcie.source.contains("AMD") { HostCpu::Amd } else { HostCpu::Intel },
        links: if preset.nvlink.is_some() { Inside::NvLink } else { Inside::Pci },
        nvswitch: switched,
        nvls,
        ..Platform::nvlink(arch, nodes, ranks, graph)
    })
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

    fn scaling(topology: &str, collectives: Collectives) -> WorkloadScaling {
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
    fn both_ways_of_timing_an_exchange_are_alike() {
        for machine in ["dgx-a100", "hgx-h100"] {
            for ranks in [8, 64] {
                let times = [Collectives::Simulated, Collectives::Nccl].map(|collectives| {
                    scaling(machine, collectives).predict(ranks, 128).unwrap().communication.as_secs()
                });
                let factor = (times[0] / times[1]).max(times[1] / times[0]);
                assert!(factor < 3.0, "{machine} {ranks}: {times:?}");
            }
        }
    }

    /// Options of a machine change NCCL's times as they change the simulated ones; switches are refused.
    #[test]
    fn nccl_has_the_machine_s_options() {
        let time = |topology: &str| {
            scaling(topology, Collectives::Nccl).predict(64, 8).map(|step| step.communication.as_secs())
        };
        let whole = time("dgx-a100").unwrap();
        for slower in [
            "dgx-a100,nic-bandwidth=10Gb/s",
            "dgx-a100,nics=1",
            "dgx-a100,fabric=tcp",
            "dgx-a100,devices=2",
            "dgx-a100,nvlink-bandwidth=20GB/s",
        ] {
            let slow = time(slower).unwrap();
            assert!(slow > 1.02 * whole, "{slower}: {slow} s, {whole} s");
        }
        let Err(CommandError::Usage(said)) = time("dgx-a100,fat-tree=2:1") else { panic!("not refused") };
        assert!(said.contains("leave out fat-tree"), "{said}");
    }

    #[test]
    fn a_hundred_thousand_ranks_are_one_point_among_others() {
        let point = scaling("dgx-a100", Collectives::Simulated).point(131_072).unwrap().unwrap();
        assert!(point.samples_per_s > 0.0 && point.engines.iter().any(|engine| engine.contains("rounded")));
        let strong =
            WorkloadScaling { strong: true, batch: 256, ..scaling("dgx-a100", Collectives::Simulated) };
        assert_eq!(strong.point(512).unwrap(), None);
        assert_eq!(strong.point(64).unwrap().unwrap().batch, 4);
    }

    #[test]
    fn the_tuner_sees_the_machine() {
        let of = |name: &str, ranks| platform(&Preset::named(name).unwrap(), ranks).unwrap();
        assert_eq!((of("dgx1", 8).ring.channels, of("dgx1", 8).ring.inside), (6, 20.0));
        assert_eq!((of("dgx-a100", 32).nodes, of("dgx-a100", 32).ring.across), (4, 200.0 / 12.0));
        assert!(of("hgx-h100", 8).nvls.is_some() && of("l40s", 8).links == Inside::Pci);
        assert_eq!(thinned(&(1..=1000).collect::<Vec<_>>()).len(), 11);
        assert_eq!(thinned(&[3, 5]), [3, 5]);
        assert_eq!(thinned(&(1..=64).collect::<Vec<_>>()), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(thinned(&(1..=16).collect::<Vec<_>>()).len(), 16);
        assert_eq!(thinned(&[1, 3, 100, 1000]), [1, 3, 100, 1000]);
    }

    #[test]
    fn a_gpu_that_nccl_does_not_drive_is_no_blackwell() {
        let amd = Preset { gpu: "MI300X".into(), ..Preset::named("hgx-h100").unwrap() };
        let Err(CommandError::Usage(said)) = platform(&amd, 8) else { panic!("NCCL times AMD's GPUs") };
        assert!(said.contains("MI300X") && said.contains("--collectives simulated"), "{said}");
    }
}
