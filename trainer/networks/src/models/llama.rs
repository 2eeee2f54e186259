//! A transformer with the blocks of Llama (H. Touvron et al., arXiv:2302.13971), under the names of Hugging Face's `LlamaForCausalLM`.
//!
//! ```text
//! tokens [T] - embed_tokens - blocks - norm - lm_head -> logits [T, V]        lm_head shares embed_tokens' weight, if tied
//! block  x -input_layernorm-qkv-rope-attention-o_proj-+-post_attention_layernorm-gate_up-swiglu-down_proj-+->
//!        '--------------------------------------------'---------------------------------------------------'
//! ```
//!
//! Norms are root mean square norms, and no layer has a bias. Several heads of queries share a head of keys and values. Initial
//! weights are normal with deviation 0.02.

use crate::layers::{Add, Attention, Embedding, Init, Linear, RmsNorm, Rope, Swiglu};
use crate::network::{Builder, Network};
use crate::{Error, Result};
use allfold_kernels::nn::{self, Float};

/// The constant that norms add to the mean square: that of Llama 2 and 3.
const EPS: f64 = 1e-5;
const NORMAL: Init = Init::Normal(0.02);

/// The parts of the network.
#[derive(Clone, Copy, Debug)]
pub struct Llama {
    /// The size of the vocabulary, V.
    pub vocabulary: usize,
    /// Tokens of a sample, T.
    pub positions: usize,
    /// The number of transformer blocks.
    pub layers: usize,
    /// The embedding width: numbers per position, C.
    pub width: usize,
    /// The number of heads of queries, which divides C into even parts.
    pub heads: usize,
    /// The number of heads of keys and values, which divides that of queries.
    pub kv_heads: usize,
    /// The width inside the fully connected layers.
    pub ffn: usize,
    /// The base of the frequencies by which positions rotate queries and keys.
    pub rope_base: f64,
    /// Dropout probability of the attention weights; 0: no dropout.
    pub attention_dropout: f64,
    /// Whether the head's weight is the token table.
    pub tied: bool,
}

/// The network, with a row of logits for each position, whose label is the next token.
///
/// # Errors
/// Sizes that are 0, heads that do not divide the width into even parts, or heads of keys and values that do not divide those of
/// queries.
pub fn llama<F: Float>(parts: &Llama) -> Result<Network<F>> {
    check(parts)?;
    let Llama { vocabulary, positions, layers, width, tied, .. } = *parts;
    let mut builder = Builder::new(positions);
    let table = nn::EmbeddingShape { rows: vocabulary, width };
    let embed = builder.push("model.embed_tokens", Embedding::new(positions, table, NORMAL), &[0])?;
    let mut x = embed;
    for layer in 0..layers {
        x = block(&mut builder, parts, &format!("model.layers.{layer}"), x)?;
    }
    x = builder.push("model.norm", RmsNorm::new(positions, width, EPS), &[x])?;
    let head = Linear::rows(positions, (width, vocabulary), NORMAL, None);
    match tied {
        true => builder.push_tied("lm_head", head, &[x], embed)?,
        false => builder.push("lm_head", head, &[x])?,
    };
    builder.build(positions)
}

fn check(parts: &Llama) -> Result<()> {
    let Llama { vocabulary, positions, width, heads, kv_heads, ffn, .. } = *parts;
    let sizes = [vocabulary, positions, width, heads, kv_heads, ffn];
    if sizes.contains(&0) || !width.is_multiple_of(2 * heads) || !heads.is_multiple_of(kv_heads) {
        return Err(Error::Network(format!(
            "a llama of width {width} with {heads} heads, {kv_heads} heads of keys and values, {ffn} hidden numbers, {positions} \
             positions and {vocabulary} tokens; `model.heads` must divide the width into even parts, `model.kv_heads` must divide \
             `model.heads`, and all must be 1 or more"
        )));
    }
    Ok(())
}

/// Adds a block after activation `x`; returns the activation that the block writes.
fn block<F: Float>(builder: &mut Builder<F>, parts: &Llama, name: &str, x: usize) -> Result<usize> {
    let Llama { positions, width, heads, kv_heads, ffn, rope_base, attention_dropout, .. } = *parts;
    let (depth, of) = (width / heads, |part: &str| format!("{name}.{part}"));
    let norm = || RmsNorm::new(positions, width, EPS);
    let linear = |inputs: usize, outputs: usize| Linear::rows(positions, (inputs, outputs), NORMAL, None);
    let shape = nn::AttentionShape { positions, width, heads, kv_heads, causal: true };
    let rotated =
        nn::RopeShape { positions, width: shape.step(), heads: heads + kv_heads, depth, base: rope_base };
    let queries = linear(width, shape.step()).in_unlike_parts(vec![
        ("q_proj.weight", width),
        ("k_proj.weight", kv_heads * depth),
        ("v_proj.weight", kv_heads * depth),
    ]);
    let gates =
        linear(width, 2 * ffn).in_unlike_parts(vec![("gate_proj.weight", ffn), ("up_proj.weight", ffn)]);
    let mut y = builder.push(&of("input_layernorm"), norm(), &[x])?;
    y = builder.push(&of("self_attn"), queries, &[y])?;
    y = builder.push(&of("self_attn.rotary_emb"), Rope::new(rotated), &[y])?;
    y = builder.push(&of("self_attn.softmax"), Attention::new(shape).dropping(attention_dropout), &[y])?;
    y = builder.push(&of("self_attn.o_proj"), linear(width, width), &[y])?;
    let x = builder.push(&of("self_attn.add"), Add::new(positions * width), &[x, y])?;
    y = builder.push(&of("post_attention_layernorm"), norm(), &[x])?;
    y = builder.push(&of("mlp"), gates, &[y])?;
    y = builder.push(&of("mlp.act_fn"), Swiglu::new(positions, ffn), &[y])?;
    y = builder.push(&of("mlp.down_proj"), linear(ffn, width), &[y])?;
    builder.push(&of("mlp.add"), Add::new(positions * width), &[x, y])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama 3 8B, whose published parameter count is 8,030,261,248, and Llama 3.2 1B, tied, with 1,235,814,400.
    #[test]
    fn published_sizes_and_names() {
        let large = Llama {
            vocabulary: 128_256,
            positions: 8,
            layers: 32,
            width: 4096,
            heads: 32,
            kv_heads: 8,
            ffn: 14_336,
            rope_base: 500_000.0,
            attention_dropout: 0.0,
            tied: false,
        };
        let network = llama::<f32>(&large).unwrap();
        assert_eq!(network.param_count(), 8_030_261_248);
        let small = Llama { layers: 16, width: 2048, ffn: 8192, tied: true, ..large };
        assert_eq!(llama::<f32>(&small).unwrap().param_count(), 1_235_814_400);
        let names: Vec<&str> = network.params().iter().map(|place| &*place.name).collect();
        let block = [
            "input_layernorm.weight",
            "self_attn.q_proj.weight",
            "self_attn.k_proj.weight",
            "self_attn.v_proj.weight",
            "self_attn.o_proj.weight",
            "post_attention_layernorm.weight",
            "mlp.gate_proj.weight",
            "mlp.up_proj.weight",
            "mlp.down_proj.weight",
        ];
        assert_eq!(names[0], "model.embed_tokens.weight");
        assert_eq!(names[1..10], block.map(|part| format!("model.layers.0.{part}")));
        assert_eq!(names[names.len() - 2..], ["model.norm.weight", "lm_head.weight"]);
        let refused = |parts: Llama| llama::<f32>(&parts).err().unwrap().to_string();
        for parts in [Llama { heads: 24, ..large }, Llama { kv_heads: 5, ..large }, Llama { ffn: 0, ..large }]
        {
            assert!(refused(parts).contains("`model.kv_heads` must divide `model.heads`"));
        }
    }
}
