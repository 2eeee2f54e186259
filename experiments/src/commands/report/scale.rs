//! The extent of each part of the standard experiment.

use crate::call::plan::Choice;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_collectives::Collective;
use allfold_collectives::registry::{self, Shape};
use allfold_report::sizes::RankCounts;
use allfold_sim::machines::GpuRates;
use allfold_sim::machines::presets::Preset;

/// The configuration of the small convolutional network.
pub const CNN: &str = include_str!("../../../configs/digits-cnn.toml");
/// The configuration of the small multi-layer perceptron.
pub const MLP: &str = include_str!("../../../configs/digits-mlp.toml");
/// The configuration of a wide multi-layer perceptron.
pub const WIDE: &str = include_str!("../../../configs/wide-mlp.toml");
/// The machine that the experiment predicts for, unless `--topology` names another.
pub const TOPOLOGY: &str = "nodes8";
/// The real machine that the experiment predicts large networks and NCCL on, unless `--topology` names another real one.
const CLUSTER: &str = "dgx-a100";
/// The large networks, and samples of each rank and step.
pub const NETWORKS: [(&str, usize); 2] = [("resnet50", 256), ("bert-large", 16)];
/// The number of ranks of the sweep over sizes.
pub const SWEPT_RANKS: u32 = 64;

/// The extent of each part of the standard experiment.
pub struct ReportScale {
    /// Rank counts of the proofs.
    pub proofs: RankCounts,
    /// Rank counts of training.
    pub training: &'static [u32],
    /// Steps of each training run; 0 for all of the configuration's.
    pub steps: u64,
    /// Steps of each compared strategy.
    pub compared_steps: u64,
    /// Sizes of measured collectives, in bytes.
    pub bench_sizes: &'static [u64],
    /// Timed calls of each size.
    pub iterations: u32,
    /// Rank counts of predicted collectives.
    pub predicted: &'static [u32],
    /// Rank counts of scaling curves.
    pub scaling: &'static [u32],
    /// Steps of each point of a scaling curve.
    pub scaling_steps: u64,
    /// Sizes of the sweep on a real machine, in bytes.
    pub sweep: &'static [u64],
    /// Rank counts of large networks on a real machine.
    pub workload: &'static [u32],
    /// The simulated machine.
    pub topology: String,
    /// The real machine of large networks and NCCL.
    pub cluster: Cluster,
}

/// A real machine, with what a prediction on it needs.
pub struct Cluster {
    /// Its name, as `--topology` takes it.
    pub topology: String,
    /// Its GPU.
    pub gpu: &'static GpuRates,
    /// Lanes of an algorithm in the sweep: one for each NIC of a node.
    pub lanes: u32,
}

impl Cluster {
    /// The machine that `topology` names, if it is a real one.
    fn named(topology: &str) -> CommandResult<Cluster> {
        let preset = Preset::with_options(topology).map_err(CommandError::usage)?;
        let gpu = GpuRates::named(&preset.gpu).map_err(CommandError::usage)?;
        Ok(Cluster { topology: topology.into(), gpu, lanes: preset.nics.count.max(1) })
    }
}

impl ReportScale {
    /// The extent of the quick or of the whole experiment.
    ///
    /// # Errors
    /// The machine that replaces a topology without a real machine is unknown.
    pub fn of(quick: bool, topology: &str) -> CommandResult<ReportScale> {
        let cluster = Cluster::named(topology).or_else(|_| Cluster::named(CLUSTER))?;
        let topology = topology.to_string();
        if quick {
            return Ok(ReportScale {
                proofs: RankCounts((1..=16).collect()),
                training: &[1, 2, 4],
                steps: 6,
                compared_steps: 4,
                bench_sizes: &[4 << 10, 64 << 10, 1 << 20],
                iterations: 4,
                predicted: &[8, 64, 256],
                scaling: &[1, 2, 8, 64, 1024],
                scaling_steps: 4,
                sweep: &[64 << 10, 4 << 20, 256 << 20],
                workload: &[1, 8, 64, 512],
                topology,
                cluster,
            });
        }
        Ok(ReportScale {
            proofs: RankCounts((1..=64).collect()),
            training: &[1, 2, 4, 8],
            steps: 0,
            compared_steps: 12,
            bench_sizes: &[1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20],
            iterations: 10,
            predicted: &[8, 16, 32, 64, 128, 256, 512, 1024],
            scaling: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
            scaling_steps: 12,
            sweep: &[1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20, 256 << 20, 1 << 30],
            workload: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
            topology,
            cluster,
        })
    }
}

/// The call of a collective on this many ranks, in f32.
pub fn choice(collective: Collective, name: Option<&str>, ranks: u32) -> CommandResult<Choice> {
    let algorithm =
        name.map(|name| registry::find(collective, name)).transpose().map_err(CommandError::run)?;
    Ok(Choice::new(collective, algorithm, Shape::new(ranks).map_err(CommandError::run)?))
}
