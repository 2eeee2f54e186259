//! Parameters, gradients, the optimiser's state, and the buffers of their exchange.
//!
//! Bytes of each parameter, by (parameters, gradients, optimiser); `/` marks what the data-parallel ranks share:
//!
//! | software | not sharded | ZeRO-1 | ZeRO-2 | ZeRO-3, FSDP |
//! |---|---|---|---|---|
//! | Megatron | 2, 4, 12 (f16 of 2021: 2, 2, 16) | 2, 4, /12 | 2, /4, /12 | /2, /4, /12 |
//! | Megatron-DeepSpeed | 2, 2, 16 | 2, 2, /16 (bf16: 2, 2 + 4, /16) | 2, /2, /16 | /2, /2, /16 |
//! | PyTorch FSDP, JAX | 4, 4, 8 | 4, 4, /8 | 4, /4, /8 | /4, /4, /8 |

use super::stage::StageShare;
use crate::job::{Framework, Offload, OperandPrecision, TrainingJob};
use crate::layout::Sharding;

/// Bytes of a stage's parameters and of what belongs to them.
pub(super) struct State {
    pub parameters: f64,
    pub gradients: f64,
    pub optimizer: f64,
    pub exchange: f64,
}

/// The share of parameters that is trained with small matrices beside frozen ones.
const SMALL_MATRICES: f64 = 0.005;

/// Parameters of one rank before the data-parallel axis shares them: `[all but experts, experts]`, and of its largest layer.
struct Held {
    parameters: [f64; 2],
    layer: f64,
    ends: f64,
}

impl Held {
    fn of(job: &TrainingJob, stage: &StageShare) -> Held {
        let (model, layout) = (&job.model, &job.layout);
        let tensor = f64::from(layout.tensor);
        let hidden = f64::from(model.hidden);
        let matrices = if model.gated { 3.0 } else { 2.0 };
        let [attention, mamba, dense, mixtures] = stage.layers;
        let count = model.parameters();
        let of_mixtures = model.kinds()[3].max(1.0);
        let experts = count.experts / of_mixtures / f64::from(layout.expert);
        let shared = model.experts.map_or(0.0, |experts| {
            matrices * hidden * f64::from(experts.shared_ffn) + f64::from(experts.count) * hidden
        });
        let feed_forward = matrices * hidden * f64::from(model.ffn);
        let blocks = attention * model.attention_parameters()
            + mamba * 6.2 * hidden * hidden
            + dense * feed_forward
            + mixtures * shared;
        // A tied output layer on another stage than the embedding has a copy of its weight.
        let head = if stage.last && (!model.tied || !stage.first) { count.embedding } else { 0.0 };
        let ends = (if stage.first { count.embedding } else { 0.0 } + head) / tensor;
        let widest = if mixtures > 0.0 { shared + experts * tensor } else { feed_forward };
        Held {
            parameters: [blocks / tensor + ends, mixtures * experts],
            layer: (model.attention_parameters() + widest) / tensor,
            ends,
        }
    }
}

/// Bytes of parameters, gradients and the optimiser's state of one parameter.
fn widths(job: &TrainingJob) -> [f64; 3] {
    if job.precision == OperandPrecision::F32 {
        return [4.0, 4.0, 8.0];
    }
    if job.details.pure_16_bit {
        return [2.0, 2.0, 4.0];
    }
    let f16 = job.precision == OperandPrecision::F16;
    let sharded = job.layout.sharding != Sharding::None;
    // Kernels of Transformer Engine keep 8-bit copies of weights beside the 16-bit ones.
    let copies = match job.precision {
        OperandPrecision::Fp8 | OperandPrecision::Fp8Rows | OperandPrecision::Mxfp8 => 1.0,
        OperandPrecision::Nvfp4 => 0.56,
        _ => 0.0,
    };
    match job.framework {
        Framework::Megatron2021 if f16 => [2.0, 2.0, 16.0],
        Framework::MegatronDeepspeed if sharded && !f16 => [2.0, 6.0, 16.0],
        Framework::MegatronDeepspeed | Framework::HuggingfaceDeepspeed => [2.0, 2.0, 16.0],
        Framework::Foundry | Framework::Torchtitan | Framework::TorchtitanEager => [4.0, 4.0, 8.0],
        // AutoModel loads 16-bit parameters, and the optimiser's state has their width.
        Framework::Automodel => [2.0, 2.0, 8.0],
        Framework::Xla | Framework::XlaTransformerEngine => [4.0, 4.0, 8.0],
        _ => [2.0 + copies, 4.0, 12.0],
    }
}

impl State {
    pub fn of(job: &TrainingJob, stage: &StageShare) -> State {
        let (layout, held) = (&job.layout, Held::of(job, stage));
        let replicas = f64::from(layout.data() * layout.context);
        let of_node = f64::from(layout.data().min((job.cluster.domain / layout.tensor).max(1)));
        let all = if layout.sharding == Sharding::Hsdp { of_node } else { replicas };
        let of_experts = (all * f64::from(layout.tensor) / f64::from(layout.expert)).max(1.0);
        let sharers = [all.max(1.0), of_experts];
        let [parameter, gradient, state] = widths(job);
        let shared = |from: &[Sharding]| from.contains(&layout.sharding);
        let bytes = |width: f64, is_shared: bool| -> f64 {
            let each = held.parameters.iter().zip(sharers);
            each.map(|(count, sharers)| width * count / if is_shared { sharers } else { 1.0 }).sum()
        };
        let of_all = [Sharding::Zero3, Sharding::Fsdp, Sharding::Hsdp];
        let of_gradients = [Sharding::Zero2, Sharding::Zero3, Sharding::Fsdp, Sharding::Hsdp];
        let trained = if job.lora { SMALL_MATRICES } else { 1.0 };
        let frozen = if job.lora { 2.0 } else { parameter };
        let on_device = |offloaded: bool| if offloaded { 0.0 } else { 1.0 };
        let offload = job.details.offload;
        State {
            parameters: bytes(frozen, shared(&of_all)) * on_device(offload == Offload::Parameters),
            gradients: trained * bytes(gradient, shared(&of_gradients)),
            optimizer: trained
                * bytes(state, layout.sharding != Sharding::None)
                * on_device(offload != Offload::None),
            exchange: exchange(job, &held, trained),
        }
    }
}

/// Gathered parameters and unshared gradients of two layers, and those of embedding and output layer; DeepSpeed's two buckets of
/// 5e8 elements (its documentation's defaults).
fn exchange(job: &TrainingJob, held: &Held, trained: f64) -> f64 {
    let deepspeed = matches!(job.framework, Framework::MegatronDeepspeed | Framework::HuggingfaceDeepspeed);
    if gathers(job.layout.sharding) && deepspeed {
        return 2.0 * 2.0 * held.layer + 2.0 * 5e8_f64.min(held.parameters[0]);
    }
    if gathers(job.layout.sharding) {
        return 2.0 * held.layer * (2.0 + 4.0 * trained) + held.ends * (2.0 + trained);
    }
    if deepspeed && job.layout.sharding != Sharding::None {
        let bucket = 5e8_f64.min(held.parameters[0]);
        return 2.0 * 2.0 * bucket;
    }
    0.0
}

/// Whether parameters are gathered before they are used.
fn gathers(sharding: Sharding) -> bool {
    matches!(sharding, Sharding::Zero3 | Sharding::Fsdp | Sharding::Hsdp)
}
