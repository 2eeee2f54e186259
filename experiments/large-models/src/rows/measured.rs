//! The measured time of a step, from whatever a row states.
//!
//! ```text
//! seconds       as they are
//! tokens/s      of a GPU: global batch x length / (tokens/s x GPUs)
//! tokens/s      of the job: global batch x length / (tokens/s)
//! samples/s     of the job: global batch / (samples/s)
//! TFLOP/s       of a GPU: FLOP of a step, as the source counts them / (TFLOP/s x GPUs)
//! ```

use super::fields::Fields;
use super::words::has;
use crate::job::{Framework, TrainingJob};
use crate::layout::Recompute;

/// Two figures of one row may differ by this much: tables are rounded.
const AGREE: f64 = 1.2;

/// The seconds of a step; `None` if nothing is stated from which they follow.
pub(super) fn seconds(
    measured: Option<&Fields<'_>>,
    job: &TrainingJob,
    counts: &str,
) -> Result<Option<f64>, String> {
    let Some(measured) = measured else { return Ok(None) };
    let (gpus, batch, tokens) =
        (f64::from(job.layout.gpus), f64::from(job.layout.global_batch), job.layout.tokens());
    let stated = [
        ("seconds_per_step", measured.positive("seconds_per_step")?),
        ("tokens_per_s_per_gpu", measured.positive("tokens_per_s_per_gpu")?.map(|rate| tokens / rate / gpus)),
        ("tokens_per_s", measured.positive("tokens_per_s")?.map(|rate| tokens / rate)),
        ("samples_per_s", measured.positive("samples_per_s")?.map(|rate| batch / rate)),
    ];
    let tflops = measured.positive("tflops_per_gpu")?;
    let mut found = stated.into_iter().filter_map(|(key, seconds)| Some((key, seconds?)));
    let Some((first, seconds)) = found.next() else {
        return Ok(tflops.and_then(|rate| Some(step_flops(job, counts)? / (rate * 1e12 * gpus))));
    };
    for (key, other) in found {
        let factor = (other / seconds).max(seconds / other);
        if factor > AGREE {
            return Err(format!(
                "`{first}` gives {seconds:.4} s a step and `{key}` {other:.4} s; figures within 20 % of each other are right"
            ));
        }
    }
    Ok(Some(seconds))
}

/// FLOP of a step as a source counts them. `counts`: its words on that, in lower case.
///
/// - Megatron-LM 2021 (SC21, appendix): with recomputation, 96 B s l h^2 (1 + s/6h + V/16lh)
/// - Megatron-LM 2022 and most others: model FLOP, 72 B s l h^2 (1 + s/6h + V/12lh)
/// - bigscience: 8 (without recomputation 6) x parameters x tokens
/// - Megatron-core since 2025: model FLOP, causal attention
///
/// All are passes x (2 x weights of the blocks + attention) + 6 x vocabulary x hidden, for each token; a block's weights and the pairs of
/// attention are those of the model's own shapes.
pub(super) fn step_flops(job: &TrainingJob, counts: &str) -> Option<f64> {
    let (model, layout) = (&job.model, &job.layout);
    let tokens = layout.tokens();
    let recomputed = has(counts, &["with recomputation", "count recomputation", "hardware flop"])
        && !(counts.contains("where recompute") && layout.recompute != Recompute::Full);
    let passes = if recomputed { 4.0 } else { 3.0 };
    if has(counts, &["params*tokens", "params x tokens", "params * tokens", "parameters x tokens"]) {
        let parameters = model.stated_parameters.unwrap_or_else(|| model.parameters().total());
        return Some(2.0 * passes * parameters * tokens);
    }
    // Sources of mixtures and hybrids count what they do not state.
    if model.hybrid.is_some() {
        return None;
    }
    let causal = match job.framework {
        Framework::MegatronCore => counts.contains("log-throughput"),
        _ => counts.contains("causal"),
    };
    let [attention, _, dense, mixtures] = model.kinds();
    let hidden = f64::from(model.hidden);
    let matrices = if model.gated { 3.0 } else { 2.0 };
    let routed = model.experts.map_or(0.0, |experts| {
        f64::from(experts.top_k) * f64::from(experts.ffn) + f64::from(experts.shared_ffn)
    });
    let weights = attention * model.attention_parameters()
        + matrices * hidden * (dense * f64::from(model.ffn) + mixtures * routed);
    // Queries times keys, and their weights times values: of MLA with unlike widths.
    let width = model.latent.map_or(model.head_width(), |latent| {
        f64::from(latent.plain_dim + latent.rotary_dim + latent.value_dim) / 2.0
    });
    let pairs = 4.0 * f64::from(layout.sequence) * f64::from(model.heads) * width * attention;
    let each = passes * (2.0 * weights + if causal { pairs / 2.0 } else { pairs });
    Some(tokens * (each + 6.0 * f64::from(model.vocab) * hidden))
}
