//! The job that a plan is for: model, GPUs, batch and limits.

use crate::cluster::Cluster;
use crate::job::{Details, Framework, OperandPrecision, TrainingJob};
use crate::layout::Layout;
use crate::model::LargeModel;

/// The job that a plan is for.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanTask {
    /// The network.
    pub model: LargeModel,
    /// The GPUs and their network.
    pub cluster: Cluster,
    /// The number of GPUs.
    pub gpus: u32,
    /// Sequences of a step.
    pub global_batch: u32,
    /// Tokens of a sequence.
    pub sequence: u32,
    /// The precision of the blocks' products.
    pub precision: OperandPrecision,
    /// The software.
    pub framework: Framework,
}

impl PlanTask {
    /// The job of this task with a layout.
    pub fn job(&self, layout: Layout) -> TrainingJob {
        TrainingJob {
            model: self.model.clone(),
            layout,
            cluster: self.cluster.clone(),
            precision: self.precision,
            framework: self.framework,
            lora: false,
            packed: false,
            release: None,
            details: Details::default(),
        }
    }
}
