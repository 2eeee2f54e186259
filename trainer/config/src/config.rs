//! All tables of a run.

use crate::{
    CheckpointConfig, DataConfig, DdpConfig, GpuExchange, LrScheduleConfig, LrScheduleName, ModelConfig,
    OptimiserConfig, ParallelConfig, PrecisionConfig, TrainingConfig,
};
use documented::DocumentedFields;
use serde::{Deserialize, Deserializer, Serialize};

/// A training run. The configuration determines every loss and weight, on any backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `single`, `ddp`, `data_parallel`, `parameter_server`, `zero1`, `zero2`, `zero3`, `pipeline`, `tensor`, `context` or `expert`.
    pub strategy: String,
    /// `cpu`; `cuda`: one GPU for each rank, and ranks share GPUs in turn if there are fewer; or a list with a device for each rank:
    /// `["cuda:0", "cpu"]`.
    #[serde(deserialize_with = "one_or_each")]
    pub device: String,
    /// How ranks on GPUs sum gradients: `nccl` (NCCL's collectives), `scheduled` (Allfold's algorithms over NCCL's messages), `device` (a
    /// fused kernel, for ranks of one process or host), `host` (the CPU's communicator), or `auto` (`nccl`, else `device` in one process,
    /// else `host`). `scheduled`, `device` and `host` give the CPU's bits.
    pub exchange: GpuExchange,
    /// Whether pictures on GPUs are laid out with channels last, as tensor cores need them. Results differ by rounding only.
    pub channels_last: bool,
    /// Compute threads of each rank. The results do not depend on their number.
    pub threads: usize,
    /// Seed of the initial weights and of the order of samples.
    pub seed: u64,
    /// The network, and its initial weights.
    pub model: ModelConfig,
    /// The samples, and how ranks and batches draw them.
    pub data: DataConfig,
    /// How long a run is, in which steps it goes, and by what it is judged.
    pub training: TrainingConfig,
    /// How gradients change the weights.
    pub optimiser: OptimiserConfig,
    /// How the learning rate changes over a run.
    pub lr_schedule: LrScheduleConfig,
    /// The types that numbers have, and the loss scale.
    pub precision: PrecisionConfig,
    /// How gradients are exchanged: ddp's buckets, hooks and buffers.
    pub ddp: DdpConfig,
    /// How the strategy divides the work.
    pub parallel: ParallelConfig,
    /// When checkpoints are written, and where.
    pub checkpoint: CheckpointConfig,
}

impl Default for Config {
    /// The defaults train the CNN on the digits.
    fn default() -> Config {
        Config {
            strategy: "ddp".into(),
            device: "cpu".into(),
            exchange: GpuExchange::default(),
            channels_last: false,
            threads: 1,
            seed: 0,
            model: ModelConfig::default(),
            data: DataConfig::default(),
            training: TrainingConfig::default(),
            optimiser: OptimiserConfig::default(),
            lr_schedule: LrScheduleConfig::default(),
            precision: PrecisionConfig::default(),
            ddp: DdpConfig::default(),
            parallel: ParallelConfig::default(),
            checkpoint: CheckpointConfig::default(),
        }
    }
}

impl Config {
    /// The configuration after `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Config)) -> Config {
        change(&mut self);
        self
    }

    /// The data that a run is scored on, in a word.
    pub fn scored_on(&self) -> &'static str {
        if self.data.validation > 0 { "validation" } else { "test" }
    }

    /// Whether anything depends on which epoch has a better score.
    pub fn compares_scores(&self) -> bool {
        self.training.patience > 0 || self.checkpoint.best || self.lr_schedule.name == LrScheduleName::Plateau
    }

    /// The configuration of a run that writes and resumes no checkpoints and has a fixed number of steps: for measurements.
    pub fn fixed_length(&mut self) {
        let CheckpointConfig { every, every_epochs, best, resume, .. } = &mut self.checkpoint;
        (*every, *every_epochs, *best, *resume) = (0, 0, false, false);
        let TrainingConfig { patience, min_delta, score_train, .. } = &mut self.training;
        (*patience, *min_delta, *score_train) = (0, 0.0, false);
    }

    /// Samples in each of the micro-batches that `samples` of a step are cut into; the last one may have fewer.
    pub fn micro_batch(&self, samples: usize) -> usize {
        samples.div_ceil(self.training.accumulate.max(1)).max(1)
    }
}

/// Reads one device or a list of devices; a list is kept with commas between its names.
fn one_or_each<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a device, such as \"cpu\", or a list with one for each rank")]
    enum OneOrEach {
        One(String),
        Each(Vec<String>),
    }
    Ok(match OneOrEach::deserialize(from)? {
        OneOrEach::One(name) => name,
        OneOrEach::Each(names) => names.join(","),
    })
}
