//! How the ranks of a job share a model and its batch.

use crate::model::LargeModel;
use serde::{Deserialize, Serialize};

/// The sizes of the groups of ranks, and the batch. `gpus` = tensor x pipeline x context x data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// The ranks of the job.
    pub gpus: u32,
    /// Ranks that share every layer's matrices.
    pub tensor: u32,
    /// Stages of the pipeline.
    pub pipeline: u32,
    /// Groups of layers of each stage (interleaved schedule); 1: all its layers in a row.
    pub chunks: u32,
    /// Ranks that share a sequence.
    pub context: u32,
    /// Ranks that share a block's experts.
    pub expert: u32,
    /// What the ranks of the data-parallel axis share.
    pub sharding: Sharding,
    /// Whether the ranks of the tensor axis share the tokens between their matrices, too.
    pub sequence_parallel: bool,
    /// What is computed again before the backward pass.
    pub recompute: Recompute,
    /// Sequences of one micro-batch of a rank.
    pub micro_batch: u32,
    /// Sequences of a step of the whole job.
    pub global_batch: u32,
    /// Tokens of a sequence.
    pub sequence: u32,
}

/// What the ranks of the data-parallel axis share, beside the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharding {
    /// Nothing.
    None,
    /// The state of the optimiser.
    Zero1,
    /// Gradients, too.
    Zero2,
    /// Parameters, too: ZeRO-3.
    Zero3,
    /// As ZeRO-3, by PyTorch's FSDP.
    Fsdp,
    /// As FSDP inside of a node, copies across nodes.
    Hsdp,
}

impl Sharding {
    /// Whether ranks keep only a part of the parameters between uses.
    pub fn shares_parameters(self) -> bool {
        matches!(self, Sharding::Zero3 | Sharding::Fsdp | Sharding::Hsdp)
    }
}

/// What is computed again before the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing.
    None,
    /// The parts that are cheap to compute and large to keep, as the framework chooses them.
    Selective,
    /// Every block.
    Full,
    /// Not stated.
    Unknown,
}

impl Layout {
    /// Ranks that share one copy of the model.
    fn group(&self) -> u32 {
        self.tensor.saturating_mul(self.pipeline).saturating_mul(self.context)
    }

    /// Ranks of the data-parallel axis.
    pub fn data(&self) -> u32 {
        self.gpus / self.group().max(1)
    }

    /// Micro-batches of a step on each rank; at least 1.
    pub fn micro_batches(&self) -> f64 {
        (f64::from(self.global_batch) / (f64::from(self.data()) * f64::from(self.micro_batch))).max(1.0)
    }

    /// Tokens of a step of the whole job.
    pub fn tokens(&self) -> f64 {
        f64::from(self.global_batch) * f64::from(self.sequence)
    }

    /// Refuses a layout that does not multiply, or does not divide the model; says what would be right.
    pub fn check(&self, model: &LargeModel) -> Result<(), String> {
        let group = self.group();
        let sizes =
            [self.gpus, self.tensor, self.pipeline, self.chunks, self.context, self.expert, self.micro_batch];
        if sizes.contains(&0) || self.global_batch == 0 || self.sequence == 0 {
            return Err("a size of a layout is 0; give 1 or more".into());
        }
        if !self.gpus.is_multiple_of(group) {
            return Err(format!(
                "{} GPUs are no multiple of tensor {} x pipeline {} x context {} = {group}",
                self.gpus, self.tensor, self.pipeline, self.context
            ));
        }
        if !self.global_batch.is_multiple_of(self.data().saturating_mul(self.micro_batch)) {
            return Err(format!(
                "a batch of {} sequences is no multiple of {} data-parallel ranks x micro-batch {}",
                self.global_batch,
                self.data(),
                self.micro_batch
            ));
        }
        if !model.heads.is_multiple_of(self.tensor) {
            return Err(format!(
                "{} heads cannot be shared by {} tensor-parallel ranks",
                model.heads, self.tensor
            ));
        }
        if self.pipeline.saturating_mul(self.chunks) > model.layers {
            return Err(format!(
                "{} layers cannot be cut into {} stages of {} chunks",
                model.layers, self.pipeline, self.chunks
            ));
        }
        match model.experts {
            None if self.expert > 1 => Err(format!("{} has no experts; expert = 1 is right", model.name)),
            Some(experts) if !experts.count.is_multiple_of(self.expert) => Err(format!(
                "{} experts cannot be shared by {} expert-parallel ranks",
                experts.count, self.expert
            )),
            _ => Ok(()),
        }
    }
}
