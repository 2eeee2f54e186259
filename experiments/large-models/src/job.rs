//! One training job: what is predicted.

use crate::cluster::Cluster;
use crate::layout::Layout;
use crate::model::LargeModel;
use serde::{Deserialize, Serialize};

/// A model, how it is trained, where, and by which software.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingJob {
    /// The network.
    pub model: LargeModel,
    /// How ranks share it.
    pub layout: Layout,
    /// The GPUs.
    pub cluster: Cluster,
    /// The precision of the blocks' products.
    pub precision: OperandPrecision,
    /// The framework's name, a key of the table of frameworks.
    pub framework: Framework,
    /// Whether small matrices are trained beside frozen ones (LoRA).
    pub lora: bool,
    /// Whether sequences of unlike lengths are packed into one (fine-tuning).
    pub packed: bool,
    /// The release of the framework in months since the year 0, where it is known.
    pub release: Option<u32>,
    /// What else is known of the run.
    pub details: Details,
}

/// What a run states beyond its settings; the default is what a run does that states nothing of the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Attention writes its scores to memory although the framework has a fused kernel.
    pub unfused_attention: bool,
    /// Exchanges of the tensor axis overlap with its products.
    pub async_tensor: bool,
    /// Parameters, gradients and the optimiser's state have 16 bits.
    pub pure_16_bit: bool,
    /// Experts drop the tokens above their capacity.
    pub token_drop: bool,
    /// No exchange overlaps with computation.
    pub no_overlap: bool,
    /// What is kept in the memory of the host.
    pub offload: Offload,
}

/// What is kept in the memory of the host instead of the GPU's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// Nothing.
    #[default]
    None,
    /// The optimiser's state; its update runs on the host.
    Optimizer,
    /// Parameters, too.
    Parameters,
}

/// Operands of the products of blocks. Embedding, output layer and attention have 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperandPrecision {
    /// f32 or TF32 throughout.
    F32,
    /// bf16.
    Bf16,
    /// f16.
    F16,
    /// FP8 with one scale a tensor.
    Fp8,
    /// FP8 with a scale for each row or block.
    Fp8Rows,
    /// FP8 with a scale for each 32 elements (MXFP8).
    Mxfp8,
    /// NVFP4.
    Nvfp4,
}

impl OperandPrecision {
    /// Whether operands have eight bits or fewer.
    pub fn is_narrow(self) -> bool {
        matches!(
            self,
            OperandPrecision::Fp8
                | OperandPrecision::Fp8Rows
                | OperandPrecision::Mxfp8
                | OperandPrecision::Nvfp4
        )
    }
}

/// The software whose kernels and exchanges a step uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Framework {
    /// Megatron-LM of 2021: attention that keeps its scores, nothing of the exchanges hidden.
    Megatron2021,
    /// Megatron-LM of 2022: sequence parallelism, selective recomputation.
    Megatron2022,
    /// Megatron-LM with DeepSpeed.
    MegatronDeepspeed,
    /// Hugging Face's models with DeepSpeed.
    HuggingfaceDeepspeed,
    /// Megatron-core by NeMo or Megatron-Bridge, with Transformer Engine.
    MegatronBridge,
    /// Megatron-core by itself, nothing hidden.
    MegatronCore,
    /// NeMo AutoModel.
    Automodel,
    /// llm-foundry: PyTorch eager with FSDP.
    Foundry,
    /// torchtitan, compiled.
    Torchtitan,
    /// torchtitan, eager.
    TorchtitanEager,
    /// JAX with XLA's kernels.
    Xla,
    /// JAX with Transformer Engine's kernels.
    XlaTransformerEngine,
}

impl Framework {
    /// Every framework.
    pub const ALL: [Framework; 12] = [
        Framework::MegatronBridge,
        Framework::MegatronCore,
        Framework::Megatron2022,
        Framework::Megatron2021,
        Framework::MegatronDeepspeed,
        Framework::HuggingfaceDeepspeed,
        Framework::Automodel,
        Framework::Foundry,
        Framework::Torchtitan,
        Framework::TorchtitanEager,
        Framework::Xla,
        Framework::XlaTransformerEngine,
    ];

    /// The name in files and on command lines: `megatron-bridge`.
    pub fn name(self) -> String {
        written(self)
    }

    /// The framework of this name.
    ///
    /// # Errors
    /// Another name; all names are listed.
    pub fn named(text: &str) -> Result<Framework, String> {
        pick("framework", text, &Framework::ALL)
    }
}

impl OperandPrecision {
    /// Every precision.
    pub const ALL: [OperandPrecision; 7] = [
        OperandPrecision::F32,
        OperandPrecision::Bf16,
        OperandPrecision::F16,
        OperandPrecision::Fp8,
        OperandPrecision::Fp8Rows,
        OperandPrecision::Mxfp8,
        OperandPrecision::Nvfp4,
    ];

    /// The name in files and on command lines: `bf16`.
    pub fn name(self) -> String {
        written(self)
    }

    /// The precision of this name; `fp16` and `fp32` are known, too.
    ///
    /// # Errors
    /// Another name; all names are listed.
    pub fn named(text: &str) -> Result<OperandPrecision, String> {
        let lower = text.to_lowercase();
        let name = match &*lower {
            "fp16" => "f16",
            "fp32" => "f32",
            other => other,
        };
        pick("precision", name, &OperandPrecision::ALL)
    }
}

/// The name by which a value is serialized.
fn written(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| Some(value.as_str()?.to_string())).unwrap_or_default()
}

/// The value with this name; case makes no difference.
fn pick<T: Serialize + Copy>(kind: &str, text: &str, all: &[T]) -> Result<T, String> {
    let lower = text.to_lowercase();
    let names: Vec<String> = all.iter().map(|value| written(*value)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let at = names.iter().position(|name| *name == lower);
    at.and_then(|at| all.get(at).copied()).ok_or_else(|| allfold_base::suggest::unknown(kind, text, &names))
}
