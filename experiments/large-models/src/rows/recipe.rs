//! How a row trains: software, precision, sharding, recomputation, by the words that its source uses.

use super::words::{has, release, release_after, year};
use crate::job::{Framework, Offload, OperandPrecision};
use crate::layout::{Recompute, Sharding};
use allfold_sim::machines::Generation;

/// What names the software of a row, in lower case.
pub(super) struct Software<'a> {
    /// The row's software, or the file's.
    pub words: &'a str,
    /// The file's software, the row's notes and the row's precision.
    pub around: &'a str,
    /// The generation of the GPUs.
    pub generation: Generation,
    /// What the data-parallel ranks share.
    pub sharding: Sharding,
    /// Whether layers are cut over ranks, or experts.
    pub model_parallel: bool,
}

impl Software<'_> {
    /// The framework that these words most likely mean; for unknown words by sharding.
    pub fn framework(&self) -> Framework {
        let said = |words: &[&str]| has(self.words, words);
        if said(&["automodel"]) {
            return Framework::Automodel;
        }
        if said(&["primus"]) {
            let torch = said(&["torchtitan"]) && !said(&["megatron"]);
            return if torch { Framework::Torchtitan } else { Framework::MegatronBridge };
        }
        if said(&["torchtitan"]) {
            return self.torchtitan();
        }
        if said(&["jax", "paxml", "maxtext", "t5x", "xla", "levanter", "axlearn", "alpa", "tpu"]) {
            return self.jax();
        }
        if said(&["deepspeed"]) {
            return self.deepspeed();
        }
        if said(&["megatron-bridge", "megatron bridge", "nemo"]) {
            return Framework::MegatronBridge;
        }
        if said(&["megatron"]) {
            return self.megatron();
        }
        let eager =
            ["foundry", "composer", "mosaic", "fairscale", "lightning", "lit-gpt", "recipes", "colossal"];
        if said(&eager)
            || said(&["fsdp", "pytorch", "hugging", "transformers", "accelerate", "trl", "axolotl"])
        {
            return self.pytorch();
        }
        match self.sharding {
            Sharding::Fsdp | Sharding::Hsdp => self.pytorch(),
            Sharding::Zero2 | Sharding::Zero3 => Framework::HuggingfaceDeepspeed,
            _ if self.model_parallel => Framework::MegatronCore,
            _ => Framework::Foundry,
        }
    }

    fn torchtitan(&self) -> Framework {
        // FP8 in torchtitan is used with torch.compile, and from 2025 on its results are compiled.
        let compiled = has(self.around, &["compile", "float8", "fp8", "mxfp"])
            && !has(self.around, &["no compile", "without compile"]);
        match compiled || year(self.words).is_some_and(|year| year >= 2025) {
            true => Framework::Torchtitan,
            false => Framework::TorchtitanEager,
        }
    }

    fn jax(&self) -> Framework {
        // NVIDIA's containers of the recipes' releases have Transformer Engine switched on.
        let engine = has(self.around, &["te bf16", "te fp8", "transformer engine", "fp8", "recipes release"]);
        match engine && !has(self.words, &["maxtext"]) {
            true => Framework::XlaTransformerEngine,
            false => Framework::Xla,
        }
    }

    fn deepspeed(&self) -> Framework {
        let hugging = has(self.words, &["hugging", "(hf)", "hf ", "transformers", "trainer"]);
        let megatron = has(self.words, &["megatron"]);
        match (hugging, megatron) {
            (false, true) if has(self.words, &["megatron-deepspeed", "deepspeed 3d", "+ deepspeed"]) => {
                Framework::MegatronDeepspeed
            }
            // Two programs in one description: the notes of the row say which, else the sharding.
            (_, true) if self.words.contains(';') || self.words.contains(" and ") => {
                let deepspeed = has(self.around, &["deepspeed (hf)"])
                    || matches!(self.sharding, Sharding::Zero2 | Sharding::Zero3);
                match (deepspeed, hugging) {
                    (true, true) => Framework::HuggingfaceDeepspeed,
                    (true, false) => Framework::MegatronDeepspeed,
                    (false, _) => self.megatron(),
                }
            }
            (true, false) => Framework::HuggingfaceDeepspeed,
            (false, false) if !self.model_parallel => Framework::HuggingfaceDeepspeed,
            _ => Framework::MegatronDeepspeed,
        }
    }

    /// Megatron-LM by its year or version: sequence parallelism came in 2022, Transformer Engine and Megatron-core in 2023.
    fn megatron(&self) -> Framework {
        let core = has(self.words, &["core", "transformer engine", "mcore", "0.1"]);
        match year(self.words) {
            _ if core => Framework::MegatronCore,
            Some(..=2021) => Framework::Megatron2021,
            Some(2022 | 2023) => Framework::Megatron2022,
            Some(_) => Framework::MegatronCore,
            None => match self.generation {
                Generation::Volta => Framework::Megatron2021,
                Generation::Ampere => Framework::Megatron2022,
                _ => Framework::MegatronCore,
            },
        }
    }

    fn pytorch(&self) -> Framework {
        match (has(self.around, &["compile"]), has(self.words, &["fsdp2"])) {
            (true, _) => Framework::Torchtitan,
            (false, true) => Framework::TorchtitanEager,
            (false, false) => Framework::Foundry,
        }
    }
}

/// The precision of the products; where it is not stated, 16 bits as the GPUs have them.
pub(super) fn precision(text: &str, generation: Generation) -> Result<OperandPrecision, String> {
    let words = text.to_lowercase();
    let said = |words_of: &[&str]| has(&words, words_of);
    let eight = said(&["fp8", "float8", "fp-8", "8-bit float", "e4m3"]);
    let usual = if generation == Generation::Volta { OperandPrecision::F16 } else { OperandPrecision::Bf16 };
    Ok(if words.is_empty() {
        usual
    } else if said(&["fp4", "float4"]) {
        OperandPrecision::Nvfp4
    } else if said(&["mxfp8", "mx-fp8", "fp8-mx", "fp8_mx", "fp8 mx", "mx fp8"]) {
        OperandPrecision::Mxfp8
    } else if eight && said(&["row", "block", "128x128", "1x128", "subchannel", "-sc"]) {
        OperandPrecision::Fp8Rows
    } else if eight {
        OperandPrecision::Fp8
    } else if said(&["bf16", "bfloat16"]) {
        OperandPrecision::Bf16
    } else if said(&["fp16", "float16", "f16", "half", "amp"]) {
        OperandPrecision::F16
    } else if said(&["fp32", "float32", "f32", "tf32", "single"]) {
        OperandPrecision::F32
    } else if said(&["mixed", "16", "default"]) || words == "te" {
        usual
    } else {
        return Err(format!("`precision` is \"{text}\"; fp32, fp16, bf16, FP8, MXFP8 or NVFP4 is right"));
    })
}

/// What the data-parallel ranks share; where it is not stated, nothing.
pub(super) fn sharding(text: &str) -> Result<Sharding, String> {
    let words = text.to_lowercase().replace(['-', '_', ' '], "");
    // The kinds that share more come first: `FSDP (ZeRO-3)`, `ZeRO-2 + distributed optimizer`.
    const KINDS: [(Sharding, &[&str]); 6] = [
        (Sharding::Hsdp, &["hsdp", "hybrid", "fsdp+dp", "mics"]),
        (Sharding::Fsdp, &["fsdp", "fullshard", "fullyshard"]),
        (Sharding::Zero3, &["zero3", "stage3"]),
        (Sharding::Zero2, &["zero2", "stage2", "shardgradop"]),
        (Sharding::Zero1, &["zero1", "stage1", "distributedoptim", "distopt"]),
        (Sharding::None, &["none", "ddp", "dp", "dataparallel", "zero0", "no", "stage0"]),
    ];
    if words.is_empty() {
        return Ok(Sharding::None);
    }
    let kind = KINDS.iter().find(|(_, names)| has(&words, names)).map(|(kind, _)| *kind);
    kind.ok_or_else(|| format!("`sharding` is \"{text}\"; none, zero1, zero2, zero3, fsdp or hsdp is right"))
}

/// What the data-parallel ranks share where a row does not say: the optimiser's state, which recipes of Megatron-core and
/// Megatron-DeepSpeed share by default.
pub(super) fn usual_sharding(framework: Framework) -> Sharding {
    match framework {
        Framework::MegatronBridge | Framework::MegatronCore | Framework::MegatronDeepspeed => Sharding::Zero1,
        Framework::Automodel => Sharding::Fsdp,
        _ => Sharding::None,
    }
}

/// What is recomputed; words that are not known count as not stated.
pub(super) fn recompute(text: &str) -> Recompute {
    let words = text.to_lowercase();
    match &*words {
        "" => Recompute::Unknown,
        "none" | "no" | "off" | "false" => Recompute::None,
        _ if has(&words, &["full", "all", "every", "uniform", "true", "yes"]) => Recompute::Full,
        _ if has(
            &words,
            &["select", "partial", "per-op", "per op", "attention", "block", "moe", "norm", "mlp", "mla"],
        ) =>
        {
            Recompute::Selective
        }
        _ => Recompute::Unknown,
    }
}

/// What is kept on the host.
pub(super) fn offload(text: &str) -> Offload {
    let words = text.to_lowercase();
    match &*words {
        "" | "none" | "no" | "false" => Offload::None,
        _ if has(&words, &["param", "full", "weights"]) => Offload::Parameters,
        _ => Offload::Optimizer,
    }
}

/// The release of the software: of the row, of its notes, or of the software's name.
pub(super) fn released(stated: &str, notes: &str, software: &str) -> Option<u32> {
    release(stated)
        .or_else(|| release_after(notes, &["release ", "nemo "]))
        .or_else(|| release_after(software, &["nemo ", "release "]))
        .or_else(|| has(software, &["torchtitan"]).then(|| year(software))?.map(|year| year * 12 + 6))
}
