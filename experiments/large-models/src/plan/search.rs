//! All layouts of a task, and why some are not looked at further.

use super::task::PlanTask;
use crate::job::{Framework, TrainingJob};
use crate::layout::{Layout, Recompute, Sharding};
use crate::memory::bytes_per_token;

/// Sizes of the tensor, context and expert axes.
const POWERS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// The most stages of a pipeline.
const STAGES: u32 = 64;
/// Sequences of a micro-batch.
const MICRO_BATCHES: [u32; 4] = [1, 2, 4, 8];
/// Groups of layers of a stage.
const CHUNKS: [u32; 6] = [1, 2, 3, 4, 5, 8];
/// The fewest tokens of a rank's part of a sequence.
const LEAST_PART: u32 = 2048;

/// What the data-parallel ranks share by this framework.
fn shardings(framework: Framework) -> &'static [Sharding] {
    match framework {
        Framework::MegatronDeepspeed | Framework::HuggingfaceDeepspeed => {
            &[Sharding::Zero1, Sharding::Zero2, Sharding::Zero3]
        }
        Framework::Foundry | Framework::Torchtitan | Framework::TorchtitanEager | Framework::Automodel => {
            &[Sharding::Fsdp, Sharding::Hsdp]
        }
        Framework::Xla | Framework::XlaTransformerEngine => &[Sharding::Fsdp],
        Framework::Megatron2021 | Framework::Megatron2022 => &[Sharding::None],
        Framework::MegatronBridge | Framework::MegatronCore => &[Sharding::Zero1],
    }
}

/// Hands every layout of a task to `take`, in an order that depends on nothing else.
pub(super) fn layouts(task: &PlanTask, take: &mut dyn FnMut(Layout)) {
    let experts = task.model.experts.map_or(1, |experts| experts.count);
    let powers = |most: u32| POWERS.into_iter().filter(move |size| *size <= most);
    let stages = |most: u32| (1..=most.min(STAGES)).filter(|stages| task.gpus.is_multiple_of(*stages));
    for tensor in powers(task.gpus.min(task.cluster.domain.max(8))) {
        for pipeline in stages(task.gpus / tensor) {
            for context in powers((task.sequence / LEAST_PART).max(1)) {
                for expert in powers(experts.min(task.gpus)) {
                    axes(task, [tensor, pipeline, context, expert], take);
                }
            }
        }
    }
}

/// The layouts with these sizes of the axes.
fn axes(task: &PlanTask, [tensor, pipeline, context, expert]: [u32; 4], take: &mut dyn FnMut(Layout)) {
    let each = task.model.layers / pipeline.max(1);
    let chunks =
        CHUNKS.into_iter().filter(|chunks| *chunks == 1 || pipeline > 1 && each.is_multiple_of(*chunks));
    for chunks in chunks {
        for micro_batch in MICRO_BATCHES {
            for sharding in shardings(task.framework) {
                for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
                    take(Layout {
                        gpus: task.gpus,
                        tensor,
                        pipeline,
                        chunks,
                        context,
                        expert,
                        sharding: *sharding,
                        sequence_parallel: tensor > 1 && task.framework != Framework::Megatron2021,
                        recompute,
                        micro_batch,
                        global_batch: task.global_batch,
                        sequence: task.sequence,
                    });
                }
            }
        }
    }
}

/// Why a layout is not looked at further; `None` for one that divides the job and is no copy of another.
pub(super) fn unsuitable(layout: &Layout, task: &PlanTask) -> Option<&'static str> {
    let kv = task.model.kv().max(1);
    let group = layout.tensor * layout.pipeline * layout.context;
    if !layout.gpus.is_multiple_of(group) {
        return Some("axes that do not multiply to the GPUs");
    }
    if layout.check(&task.model).is_err() {
        return Some("axes that do not divide the model or the batch");
    }
    // Stages may differ by a layer, but their chunks may not, and no stage may be empty.
    let uneven = !task.model.layers.is_multiple_of(layout.pipeline);
    let empty = task.model.layers.div_ceil(layout.pipeline) * (layout.pipeline - 1) >= task.model.layers;
    if layout.tensor > kv && !layout.tensor.is_multiple_of(kv) || uneven && (layout.chunks > 1 || empty) {
        return Some("axes that do not divide the model or the batch");
    }
    if layout.tensor > task.cluster.domain {
        return Some("a tensor axis over more GPUs than NVLink connects");
    }
    let replicas = layout.data() * layout.context * layout.tensor;
    if !replicas.is_multiple_of(layout.expert) {
        return Some("experts over more GPUs than a stage has");
    }
    if layout.micro_batches() < f64::from(layout.pipeline) && layout.chunks > 1 {
        return Some("fewer micro-batches than an interleaved schedule needs");
    }
    let copies = layout.sharding == Sharding::Hsdp && layout.data() * layout.tensor <= task.cluster.node;
    copies.then_some(COPY)
}

/// The reason for a layout that another one stands for.
pub(super) const COPY: &str = "copies of another layout";

/// Whether selective recomputation changes nothing, since attention's kernel keeps no scores.
pub(super) fn repeats(job: &TrainingJob) -> bool {
    let kept = |recompute| bytes_per_token(job, recompute);
    job.layout.recompute == Recompute::Selective && kept(Recompute::Selective) == kept(Recompute::None)
}
