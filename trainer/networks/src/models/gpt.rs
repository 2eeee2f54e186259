//! A small generative pre-trained transformer, of nanoGPT's shape (A. Karpathy; after A. Radford et al., 2019).
//!
//! ```text
//! tokens [T] - wte + wpe - dropout - blocks - ln_f - lm_head -> logits [T, V]        lm_head shares wte's weight, if tied
//! block     x -ln_1-c_attn-attention-c_proj-dropout-+-ln_2-c_fc-gelu-c_proj-dropout-+->
//!           '---------------------------------------'-------------------------------'
//! ```
//!
//! With experts, a mixture of experts replaces c_fc, gelu and c_proj. Names and initial weights are nanoGPT's: normal with
//! deviation 0.02, and 0.02 / sqrt(2 layers) before a residual sum.

use super::mixture::{self, Experts};
use crate::layers::{Add, Attention, Dropout, Embedding, Gelu, Init, LayerNorm, Linear, Positions};
use crate::network::{Builder, Network};
use crate::{Error, Result};
use allfold_kernels::nn::{self, Float};

/// The parts of the network.
#[derive(Clone, Copy, Debug)]
pub struct Gpt {
    /// The size of the vocabulary, V.
    pub vocabulary: usize,
    /// Tokens of a sample, T.
    pub positions: usize,
    /// The number of transformer blocks.
    pub layers: usize,
    /// The embedding width: numbers per position, C.
    pub width: usize,
    /// The number of attention heads, which divides C.
    pub heads: usize,
    /// Dropout probability of activations; 0: no dropout.
    pub dropout: f64,
    /// Dropout probability of the attention weights; 0: no dropout.
    pub attention_dropout: f64,
    /// Whether the head's weight is the token table.
    pub tied: bool,
}

/// The network, with a row of logits for each position, whose label is the next token.
///
/// # Errors
/// If the heads do not divide the width, or there are no heads, no positions or no vocabulary.
pub fn gpt<F: Float>(parts: &Gpt) -> Result<Network<F>> {
    build(parts, None)
}

/// The network with a mixture of experts in place of each block's fully connected layers.
///
/// # Errors
/// As [`gpt`], and those of [`Experts::shape`].
pub fn moe_gpt<F: Float>(parts: &Gpt, experts: &Experts) -> Result<Network<F>> {
    build(parts, Some(experts))
}

fn build<F: Float>(parts: &Gpt, experts: Option<&Experts>) -> Result<Network<F>> {
    let Gpt { vocabulary, positions, layers, width, heads, dropout, attention_dropout, tied } = *parts;
    if heads == 0 || width == 0 || !width.is_multiple_of(heads) || vocabulary == 0 || positions == 0 {
        return Err(Error::Network(format!(
            "a gpt of width {width} with {heads} heads, {positions} positions and {vocabulary} tokens; the heads must \
             divide the width, and all must be 1 or more"
        )));
    }
    let (normal, before_sum) = (Init::Normal(0.02), Init::Normal(0.02 / (2.0 * layers as f64).sqrt()));
    let zero = Some(Init::Constant(0.0));
    let whole = positions * width;
    let mut builder = Builder::new(positions);
    let table = nn::EmbeddingShape { rows: vocabulary, width };
    let wte = builder.push("transformer.wte", Embedding::new(positions, table, normal), &[0])?;
    let mut x = builder.push("transformer.wpe", Positions::new(positions, width, normal), &[wte])?;
    let dropped = |builder: &mut Builder<F>, name: &str, x: usize| match dropout > 0.0 {
        true => builder.push(name, Dropout::new(dropout, whole), &[x]),
        false => Ok(x),
    };
    x = dropped(&mut builder, "transformer.drop", x)?;
    for layer in 0..layers {
        let name = |part: &str| format!("transformer.h.{layer}.{part}");
        let linear = |builder: &mut Builder<F>, part: &str, shape, init, x: usize| {
            builder.push(&name(part), Linear::rows(positions, shape, init, zero), &[x])
        };
        let mut y = builder.push(&name("ln_1"), LayerNorm::new(positions, width), &[x])?;
        y = linear(&mut builder, "attn.c_attn", (width, 3 * width), normal, y)?;
        let attention =
            Attention::new(nn::AttentionShape { positions, width, heads, kv_heads: heads, causal: true })
                .dropping(attention_dropout);
        y = builder.push(&name("attn"), attention, &[y])?;
        y = linear(&mut builder, "attn.c_proj", (width, width), before_sum, y)?;
        y = dropped(&mut builder, &name("attn.resid_dropout"), y)?;
        x = builder.push(&name("add_1"), Add::new(whole), &[x, y])?;
        y = builder.push(&name("ln_2"), LayerNorm::new(positions, width), &[x])?;
        if let Some(experts) = experts {
            let of = (experts, positions, width);
            y = mixture::push(&mut builder, &name("mlp"), of, (normal, before_sum), y)?;
        } else {
            y = linear(&mut builder, "mlp.c_fc", (width, 4 * width), normal, y)?;
            y = builder.push(&name("mlp.gelu"), Gelu::new(4 * whole), &[y])?;
            y = linear(&mut builder, "mlp.c_proj", (4 * width, width), before_sum, y)?;
        }
        y = dropped(&mut builder, &name("mlp.dropout"), y)?;
        x = builder.push(&name("add_2"), Add::new(whole), &[x, y])?;
    }
    x = builder.push("transformer.ln_f", LayerNorm::new(positions, width), &[x])?;
    let head = Linear::rows(positions, (width, vocabulary), normal, None);
    match tied {
        true => builder.push_tied("lm_head", head, &[x], wte)?,
        false => builder.push("lm_head", head, &[x])?,
    };
    builder.build(positions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_sizes() {
        let parts = Gpt {
            vocabulary: 50_304,
            positions: 1024,
            layers: 12,
            width: 768,
            heads: 12,
            dropout: 0.0,
            attention_dropout: 0.0,
            tied: true,
        };
        // nanoGPT with biases has 124.48 M. It prints 123.69 M, because it leaves out the 0.79 M of wpe.
        let count = gpt::<f32>(&parts).unwrap().param_count();
        assert_eq!(count, 124_475_904);
        let small = Gpt { vocabulary: 1024, positions: 128, layers: 4, width: 128, heads: 4, ..parts };
        assert_eq!(gpt::<f32>(&Gpt { tied: false, ..small }).unwrap().param_count(), 1_071_872);
    }
}
