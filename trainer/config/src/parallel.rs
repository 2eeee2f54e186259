//! The table `[parallel]`: how a strategy divides the work.

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// The order of a pipeline's micro-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleName {
    /// All forward passes, then all backward passes.
    Gpipe,
    /// One forward pass and one backward pass, in turn.
    #[default]
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// 1f1b over several chunks of layers per stage.
    Interleaved,
    /// 1f1b with weight gradients postponed into the idle time.
    #[serde(rename = "zb_h1")]
    ZbH1,
    /// Two chunks per stage in the shape of a V, without idle time between a stage's passes where all passes take equally long.
    #[serde(rename = "zb_v")]
    ZbV,
}

/// What ranks that hold the same layers keep of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageSharing {
    /// Everything: replicas.
    #[default]
    Ddp,
    /// The optimiser state is sharded.
    Zero1,
    /// The optimiser state and the gradients are sharded.
    Zero2,
    /// The optimiser state, the gradients and the parameters are sharded.
    Zero3,
}

/// How a strategy divides the work. Micro-batches of a pipeline are the configuration's `training.accumulate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct ParallelConfig {
    /// Stages of a pipeline; 0: every rank is a stage. Ranks of the same stage hold the same layers and have samples of their own.
    pub stages: usize,
    /// The pipeline's schedule: `gpipe`, `1f1b`, `interleaved`, `zb_h1` or `zb_v`.
    pub schedule: ScheduleName,
    /// Chunks of layers of each stage, with the schedule `interleaved`.
    pub chunks: usize,
    /// The layers that begin the pipeline's chunks after the first; empty: chunks are chosen so that they cost alike.
    pub split: Vec<String>,
    /// Ranks that share each layer's weights and have the same samples; 0: all ranks with the strategy `tensor`, 1 with others. The
    /// number divides the attention heads.
    pub tensor: usize,
    /// Whether ranks that share layers (`tensor`) also share the positions of each sample in the layer norms, dropouts and sums between
    /// these layers, for a gpt. The number of these ranks divides the positions.
    pub sequence_parallel: bool,
    /// Ranks that share the positions of each sample, for a gpt; 0: all ranks with the strategy `context`, 1 with others. Twice the number
    /// divides the positions.
    pub context: usize,
    /// Ranks that share the experts of each block and have samples of their own, for a gpt with `model.experts`; 0: all ranks with samples of
    /// their own with the strategy `expert`, 1 with others. The number divides `model.experts`.
    pub expert: usize,
    /// With `parameter_server`: how many of the ranks, from the first, are servers. Each has a part of every weight; the others are
    /// workers.
    pub servers: usize,
    /// With `parameter_server`: steps that a worker may be ahead of the slowest; 0: all workers compute with the same weights.
    pub staleness: u64,
    /// With `pipeline`, `tensor`, `context` and `expert`: what each rank keeps of its layers: `ddp` (everything), `zero1`, `zero2` or `zero3`.
    pub sharding: StageSharing,
    /// With zero1, zero2 and zero3: how many neighbouring ranks share one copy of what is sharded, such as the ranks of a node;
    /// 0: all ranks with samples of their own. Several copies are kept equal by sums over them.
    pub shard: usize,
    /// Shares of a step's samples, a number for each rank with samples of its own, such as the ranks' speeds: with [3, 1] the first of
    /// two ranks has three quarters. Losses are weighed by samples. Empty: equal shares, of `training.batch` samples each.
    pub shares: Vec<u32>,
    /// Whether zero3 frees a unit's parameters after its forward pass and gathers them again for the backward pass.
    pub reshard_after_forward: bool,
}

impl Default for ParallelConfig {
    fn default() -> ParallelConfig {
        ParallelConfig {
            stages: 0,
            schedule: ScheduleName::default(),
            chunks: 2,
            split: Vec::new(),
            tensor: 0,
            sequence_parallel: false,
            context: 0,
            expert: 0,
            servers: 1,
            staleness: 0,
            sharding: StageSharing::default(),
            shard: 0,
            shares: Vec::new(),
            reshard_after_forward: true,
        }
    }
}
