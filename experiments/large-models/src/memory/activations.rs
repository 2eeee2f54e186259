//! Activations that layers keep for the backward pass, and the largest temporary tensors.

use super::stage::StageShare;
use crate::job::{Framework, OperandPrecision, TrainingJob};
use crate::layout::{Recompute, Sharding};

/// Bytes of one element, as kernels write it and as a product keeps its operand.
struct Elements {
    written: f64,
    kept: f64,
}

fn elements(job: &TrainingJob) -> Elements {
    use OperandPrecision::{F32, Fp8, Fp8Rows, Mxfp8, Nvfp4};
    let written = if job.precision == F32 { 4.0 } else { 2.0 };
    // torchtitan casts operands again in the backward pass; Transformer Engine keeps the narrow ones.
    let again = matches!(job.framework, Framework::Torchtitan | Framework::TorchtitanEager);
    let kept = match job.precision {
        Fp8 | Fp8Rows | Mxfp8 if !again => 1.0,
        Nvfp4 if !again => 0.56,
        _ => written,
    };
    Elements { written, kept }
}

/// Whether attention writes its scores: software before fused kernels.
fn writes_scores(job: &TrainingJob) -> bool {
    let old = [
        Framework::Megatron2021,
        Framework::Megatron2022,
        Framework::MegatronDeepspeed,
        Framework::HuggingfaceDeepspeed,
    ];
    job.details.unfused_attention || old.contains(&job.framework)
}

/// Whether blocks have dropout, whose masks are kept: GPT as Megatron-LM trains it.
fn drops(job: &TrainingJob) -> bool {
    !job.model.gated && writes_scores(job)
}

/// The share of a norm's tokens that a rank keeps.
fn norm_share(job: &TrainingJob) -> f64 {
    if job.layout.sequence_parallel { 1.0 / f64::from(job.layout.tensor) } else { 1.0 }
}

/// Bytes that one layer of each kind (attention, mixer of states, dense feed-forward network, experts) keeps for each token on a
/// rank of the tensor axis. Without recomputation and with ordinary attention, a block of a GPT keeps `10 + 24/t + 5 a s / (h t)`
/// times `h` (Korthikanti et al., 2022, equation 2).
pub fn bytes_per_token(job: &TrainingJob, recompute: Recompute) -> [f64; 4] {
    let (model, share) = (&job.model, norm_share(job));
    let input = elements(job).written * f64::from(model.hidden) * share;
    match recompute {
        Recompute::Full if model.hybrid.is_some() => [input; 4],
        Recompute::Full => [input, input, 0.0, 0.0],
        Recompute::Selective if keeps_products(job) => {
            let products = products(job).map(|output| output / 2.0);
            let attention = elements(job).written * attention_width(job);
            [input + attention + products[0], input + products[1], products[2], products[3]]
        }
        _ => {
            let scores = writes_scores(job) && recompute != Recompute::Selective;
            [attention(job, scores), mixer(job), feed_forward(job), mixture(job)]
        }
    }
}

/// Whether selective recomputation keeps the results of every second product and of attention, and computes the rest again
/// (torchtitan's default); Megatron-LM's computes attention's scores again.
fn keeps_products(job: &TrainingJob) -> bool {
    matches!(
        job.framework,
        Framework::Torchtitan | Framework::TorchtitanEager | Framework::Foundry | Framework::Automodel
    )
}

/// The width of attention's result on a rank.
fn attention_width(job: &TrainingJob) -> f64 {
    let width = job.model.latent.map_or(job.model.head_width(), |latent| f64::from(latent.value_dim));
    f64::from(job.model.heads) * width / f64::from(job.layout.tensor)
}

/// The width of queries, keys and values on a rank.
fn operands_width(job: &TrainingJob) -> f64 {
    let model = &job.model;
    let width = match model.latent {
        Some(latent) => {
            let head = 2 * (latent.plain_dim + latent.rotary_dim) + latent.value_dim;
            f64::from(model.heads) * f64::from(head)
        }
        None => f64::from(model.heads + 2 * model.kv()) * model.head_width(),
    };
    width / f64::from(job.layout.tensor)
}

/// Bytes of the results of a layer's products, by kind of layer.
fn products(job: &TrainingJob) -> [f64; 4] {
    let (model, tensor) = (&job.model, f64::from(job.layout.tensor));
    let hidden = f64::from(model.hidden);
    let gates = if model.gated { 2.0 } else { 1.0 };
    let routed = model.experts.map_or(0.0, |experts| {
        f64::from(experts.top_k) * (gates * f64::from(experts.ffn) + hidden)
            + gates * f64::from(experts.shared_ffn)
    });
    let widths = [
        operands_width(job) + hidden * norm_share(job),
        6.2 * hidden / tensor,
        gates * f64::from(model.ffn) / tensor + hidden * norm_share(job),
        routed / tensor,
    ];
    widths.map(|width| width * elements(job).written)
}

fn attention(job: &TrainingJob, scores: bool) -> f64 {
    let (model, layout, size, share) = (&job.model, &job.layout, elements(job), norm_share(job));
    let (hidden, heads, tensor) = (f64::from(model.hidden), f64::from(model.heads), f64::from(layout.tensor));
    let result = attention_width(job);
    let narrow = if size.kept < size.written { size.kept } else { 0.0 };
    let compressed = model.latent.map_or(0.0, |latent| {
        // Compressed queries, keys and values, before and after their norms.
        2.0 * size.written * f64::from(latent.query_rank + latent.kv_rank) * share
            + size.written * f64::from(model.heads) * f64::from(latent.plain_dim + latent.value_dim) / tensor
    });
    // The softmax's result, the dropout's mask and its result; the log-sum of a fused kernel.
    let of_scores = match scores {
        true => {
            (if drops(job) { 2.5 } else { 1.0 }) * size.written * heads * f64::from(layout.sequence) / tensor
        }
        false => 4.0 * heads / tensor,
    };
    let mask = if drops(job) { hidden * share } else { 0.0 };
    (size.written + size.kept) * hidden * share
        + size.written * (operands_width(job) + result)
        + narrow * result
        + compressed
        + of_scores
        + mask
}

/// A state-space mixer: its input, its widened input, the convolution's result and the gated result.
fn mixer(job: &TrainingJob) -> f64 {
    let size = elements(job);
    let hidden = f64::from(job.model.hidden);
    (size.written + size.kept) * hidden * norm_share(job)
        + size.written * (4.2 + 2.2 + 2.0 + 2.0) * hidden / f64::from(job.layout.tensor)
}

fn feed_forward(job: &TrainingJob) -> f64 {
    let (model, size, share) = (&job.model, elements(job), norm_share(job));
    let hidden = f64::from(model.hidden);
    let mask = if drops(job) { hidden * share } else { 0.0 };
    (size.written + size.kept) * hidden * share
        + inner(job, f64::from(model.ffn)) / f64::from(job.layout.tensor)
        + mask
}

/// Bytes of the inner activations of a feed-forward network of this width.
fn inner(job: &TrainingJob, width: f64) -> f64 {
    let size = elements(job);
    // Eager PyTorch keeps the activation's result apart from its product with the gate.
    let eager = [Framework::TorchtitanEager, Framework::Foundry, Framework::HuggingfaceDeepspeed];
    let gates = match job.model.gated {
        true if eager.contains(&job.framework) => 3.0,
        true => 2.0,
        false => 1.0,
    };
    (gates * size.written + size.kept) * width
}

fn mixture(job: &TrainingJob) -> f64 {
    let Some(experts) = job.model.experts else { return 0.0 };
    let (size, share, tensor) = (elements(job), norm_share(job), f64::from(job.layout.tensor));
    let hidden = f64::from(job.model.hidden);
    let input = experts.input.map_or(hidden, f64::from);
    // The tokens of a rank of the tensor axis go to `top_k` experts each: their input, inner activations and result.
    let routed = f64::from(experts.top_k) / tensor
        * ((size.kept + size.written) * input + inner(job, f64::from(experts.ffn)));
    (size.written + size.kept) * hidden * share
        + routed
        + inner(job, f64::from(experts.shared_ffn)) / tensor
        + 8.0 * f64::from(experts.count) * share
}

/// Bytes of each logit: 16-bit ones, their copy in f32, the softmax's and its gradient where the loss is not fused.
fn logit_bytes(job: &TrainingJob) -> f64 {
    let of_2025 = job.release.is_some_and(|month| month >= 2025 * 12 + 5);
    match job.framework {
        Framework::TorchtitanEager | Framework::HuggingfaceDeepspeed if !of_2025 => 14.0,
        Framework::Torchtitan if !of_2025 => 12.0,
        Framework::Xla
        | Framework::XlaTransformerEngine
        | Framework::Torchtitan
        | Framework::TorchtitanEager => 6.0,
        // Megatron-LM's `cross_entropy.py` of 2021: the copy, the difference to the maximum and its exponentials, all in f32.
        Framework::Megatron2021 | Framework::Megatron2022 | Framework::MegatronDeepspeed => 14.0,
        _ => 8.0,
    }
}

/// Bytes of the activations in flight on a stage, and of the largest temporary tensors.
pub(super) fn activations(
    job: &TrainingJob,
    stage: &StageShare,
    recompute: Recompute,
    tokens: f64,
) -> (f64, f64) {
    let (model, size) = (&job.model, elements(job));
    let tensor = f64::from(job.layout.tensor);
    let layers =
        |kept: [f64; 4]| kept.iter().zip(stage.layers).map(|(bytes, count)| bytes * count).sum::<f64>();
    // Megatron's scripts for ZeRO-3 keep the inputs of blocks in the host's memory (DeepSpeedExamples, `PA_CPU=true`).
    let on_host = recompute == Recompute::Full
        && job.framework == Framework::MegatronDeepspeed
        && job.layout.sharding == Sharding::Zero3;
    let kept = if on_host { 0.0 } else { layers(bytes_per_token(job, recompute)) * stage.in_flight };
    let hidden = size.written * f64::from(model.hidden);
    let extra = f64::from(1 + model.extra_predictions);
    let (head, logits) = match stage.last {
        true => (2.0 * hidden * norm_share(job) * extra, logit_bytes(job) * f64::from(model.vocab) / tensor),
        false => (0.0, 0.0),
    };
    // In the backward pass of a block: its widest gradients, or, before they are there, what was computed again.
    let all: [f64; 4] = bytes_per_token(job, Recompute::None);
    let present = |at: usize| stage.layers.get(at).is_some_and(|count| *count > 0.0);
    let parts = if model.hybrid.is_none() { 2..4 } else { 0..4 };
    let wider = parts.filter(|at| present(*at)).filter_map(|at| all.get(at)).copied();
    let block = wider.fold(0.0, f64::max) + if model.hybrid.is_none() { all[0] } else { 0.0 };
    let again = if recompute == Recompute::None { 0.0 } else { block };
    let backward = hidden + again.max(size.written * widest(job) / tensor);
    ((kept + head) * tokens, logits.max(backward) * tokens)
}

/// The widest inner activations of a block with its gate, in elements.
fn widest(job: &TrainingJob) -> f64 {
    let gates = if job.model.gated { 3.0 } else { 2.0 };
    let routed = job.model.experts.map_or(0, |experts| experts.top_k * experts.ffn);
    gates * f64::from(if job.model.experts.is_some() { routed } else { job.model.ffn })
}
