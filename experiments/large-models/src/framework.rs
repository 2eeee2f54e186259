//! What the software of a run does in a step: its kernels, the width of its messages, and what it hides.

use crate::job::{Framework, OperandPrecision, TrainingJob};
use crate::layout::Sharding;
use crate::parameters::Physical;
use allfold_sim::machines::Generation;

/// Kernels of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attention {
    /// The scores are written to memory and read again.
    Unfused,
    /// The first FlashAttention on Ampere, FlashAttention 2 on Hopper.
    First,
    /// FlashAttention 2, written for Ampere.
    Second,
    /// The newest kernel of each generation.
    Newest,
}

/// The properties of a framework on which the time of a step depends, from its documentation and code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    /// How often its kernels between products pass the activations through memory.
    pub(crate) passes: Physical,
    /// The kernels of its attention.
    pub(crate) attention: Attention,
    /// Bytes of an element of the gradients that are exchanged.
    pub(crate) gradient_bytes: f64,
    /// Bytes of memory traffic for each gradient of a weight that is added to that of earlier micro-batches.
    pub(crate) accumulated: f64,
    /// The share of the tensor axis' exchanges that is not hidden.
    pub(crate) tensor_exposed: Physical,
    /// Whether the exchange of gradients runs beside the backward pass.
    pub(crate) hides_gradients: bool,
    /// What exchanges of sharded parameters that are hidden take from the computation beside them.
    pub(crate) contention: Physical,
    /// Whether Python launches every kernel.
    pub(crate) eager: bool,
    /// Whether messages between stages are sharded by the tensor axis.
    pub(crate) sharded_messages: bool,
    /// Whether only one NIC of a node carries the exchange of sharded parameters (DeepSpeed's partitions).
    pub(crate) single_nic: bool,
    /// Shares of products, attention, kernels between products and tensor exchanges that selective recomputation repeats.
    pub(crate) selective: [f64; 4],
    /// The share of everything that is computed again where a run does not state its recomputation; `None`: nothing.
    pub(crate) unstated: Option<Physical>,
    /// The part of the last stage's longer time that the others wait for.
    pub(crate) uneven: Physical,
    /// Whether the output layer's loss is one fused kernel.
    pub(crate) fused_loss: bool,
    /// Whether the products of all experts of a rank are one kernel together with casts and activations, and a graph launches the step.
    pub(crate) fused_experts: bool,
}

/// A kernel of its own reads a 16-bit gradient, which the product has written, and reads and writes the sum in f32.
const KERNEL_SUM: f64 = 10.0;
/// The product of the weights' gradients itself reads and writes the sum in f32, half of it beside its arithmetic (Megatron-LM's
/// `gradient_accumulation_fusion`, of 2022).
const FUSED_SUM: f64 = 3.0;

const MEGATRON: Traits = Traits {
    passes: Physical::PassesMegatron,
    attention: Attention::Unfused,
    accumulated: KERNEL_SUM,
    gradient_bytes: 2.0,
    tensor_exposed: Physical::TensorExposed,
    hides_gradients: false,
    contention: Physical::Contention,
    eager: true,
    sharded_messages: true,
    single_nic: false,
    selective: [0.0, 1.0, 0.2, 0.0],
    unstated: None,
    uneven: Physical::Uneven,
    fused_loss: false,
    fused_experts: false,
};

const PYTORCH: Traits = Traits {
    passes: Physical::PassesEager,
    attention: Attention::Second,
    gradient_bytes: 4.0,
    hides_gradients: true,
    sharded_messages: false,
    selective: [0.5, 0.0, 1.0, 0.5],
    ..MEGATRON
};

const CORE: Traits = Traits {
    passes: Physical::PassesTransformerEngine,
    attention: Attention::Newest,
    accumulated: FUSED_SUM,
    gradient_bytes: 4.0,
    eager: false,
    sharded_messages: false,
    selective: [0.0, 0.0, 0.2, 0.0],
    fused_loss: true,
    ..MEGATRON
};

const XLA: Traits = Traits {
    accumulated: KERNEL_SUM,
    passes: Physical::PassesXla,
    hides_gradients: true,
    selective: [0.0, 0.0, 1.0, 0.0],
    unstated: Some(Physical::UnstatedXla),
    ..CORE
};

impl Traits {
    /// The properties of a framework.
    pub(crate) const fn of(framework: Framework) -> Traits {
        match framework {
            Framework::Megatron2021 => MEGATRON,
            Framework::Megatron2022 => Traits {
                accumulated: FUSED_SUM,
                gradient_bytes: 4.0,
                tensor_exposed: Physical::TensorExposed2022,
                ..MEGATRON
            },
            Framework::MegatronDeepspeed => Traits {
                single_nic: true,
                sharded_messages: false,
                selective: [0.0, 0.0, 0.2, 0.0],
                ..MEGATRON
            },
            Framework::HuggingfaceDeepspeed => Traits {
                attention: Attention::Unfused,
                gradient_bytes: 2.0,
                single_nic: true,
                selective: [0.0, 0.0, 0.2, 0.0],
                ..PYTORCH
            },
            Framework::MegatronBridge => Traits {
                gradient_bytes: 2.0,
                tensor_exposed: Physical::TensorExposedTransformerEngine,
                hides_gradients: true,
                sharded_messages: true,
                unstated: Some(Physical::UnstatedBridge),
                uneven: Physical::UnevenBridge,
                ..CORE
            },
            Framework::MegatronCore => CORE,
            Framework::Automodel => Traits { accumulated: KERNEL_SUM, hides_gradients: true, ..CORE },
            Framework::Foundry => Traits {
                attention: Attention::First,
                gradient_bytes: 2.0,
                contention: Physical::ContentionFirstFsdp,
                selective: [0.0, 0.0, 0.2, 0.0],
                ..PYTORCH
            },
            Framework::Torchtitan => {
                Traits { passes: Physical::PassesCompiled, eager: false, fused_loss: true, ..PYTORCH }
            }
            Framework::TorchtitanEager => PYTORCH,
            Framework::Xla => XLA,
            Framework::XlaTransformerEngine => Traits { passes: Physical::PassesTransformerEngine, ..XLA },
        }
    }

    /// The properties of a job's framework, and what the job's run states beyond them.
    pub(crate) fn of_job(job: &TrainingJob) -> Traits {
        let mut traits = Traits::of(job.framework);
        if job.details.unfused_attention || lacks_sinks(job) {
            traits.attention = Attention::Unfused;
        }
        traits.fused_experts = fuses_experts(job);
        traits.hides_gradients &= !job.details.no_overlap;
        traits.single_nic &= matches!(job.layout.sharding, Sharding::Zero2 | Sharding::Zero3);
        if job.details.pure_16_bit {
            traits.gradient_bytes = 2.0;
        }
        if job.framework == Framework::MegatronDeepspeed && job.precision == OperandPrecision::Bf16 {
            traits.gradient_bytes = 4.0;
        }
        if job.details.async_tensor {
            traits.tensor_exposed = Physical::TensorExposedAsynchronous;
        }
        traits
    }
}

/// Releases of Megatron-Bridge from this month on (years x 12 + month) have fused attention with a learnt sink beside the scores.
const SINKS: u32 = 2026 * 12 + 5;

/// Whether the job's attention has sinks for which Transformer Engine had no fused kernel yet.
fn lacks_sinks(job: &TrainingJob) -> bool {
    let early = job.release.is_some_and(|release| release < SINKS);
    job.framework == Framework::MegatronBridge && early && is_gpt_oss(job)
}

/// The release of Megatron-Bridge (years x 12 + month) from which its recipes of mixtures on Blackwell have one kernel for the products of
/// all experts, and a graph of the whole step (release notes of 0.5.1, 2026: DeepSeek-V3 and Qwen3; not yet for GPT-OSS).
const FUSED_EXPERTS: u32 = 2026 * 12 + 6;

fn fuses_experts(job: &TrainingJob) -> bool {
    let late = job.release.is_some_and(|release| release >= FUSED_EXPERTS);
    let bridge = job.framework == Framework::MegatronBridge && job.precision == OperandPrecision::Mxfp8;
    let plain = job.model.experts.is_some() && job.model.hybrid.is_none() && !is_gpt_oss(job);
    late && bridge && plain && job.cluster.generation == Generation::Blackwell
}

/// Whether the model is GPT-OSS, whose attention has sinks and windows.
pub(crate) fn is_gpt_oss(job: &TrainingJob) -> bool {
    job.model.name.to_lowercase().replace(['-', '_', ' '], "").contains("gptoss")
}
