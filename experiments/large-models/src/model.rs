//! The shapes of a large language model, and the number of its parameters.

use serde::{Deserialize, Serialize};

/// A transformer as large language models use it. Widths count elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LargeModel {
    /// The name that people write: `Llama 3 70B`.
    pub name: String,
    /// Blocks; of an encoder-decoder, those of both.
    pub layers: u32,
    /// The width of the residual stream.
    pub hidden: u32,
    /// The inner width of a dense block's feed-forward network.
    pub ffn: u32,
    /// Whether the feed-forward network has a gate beside its first product (SwiGLU, GeGLU).
    #[serde(default)]
    pub gated: bool,
    /// Heads of the queries.
    pub heads: u32,
    /// Heads of keys and values; as many as `heads` if left out.
    pub kv_heads: Option<u32>,
    /// The width of a head; `hidden / heads` if left out.
    pub head_dim: Option<u32>,
    /// Tokens of the vocabulary, padding included.
    pub vocab: u32,
    /// Whether the output layer shares the token embedding's weight.
    #[serde(default)]
    pub tied: bool,
    /// Attention with compressed keys and values (DeepSeek's MLA); `None` for ordinary attention.
    pub latent: Option<LatentAttention>,
    /// The experts of the blocks that have some.
    pub experts: Option<RoutedExperts>,
    /// The blocks of a network that mixes kinds of layers; `None` if every block is attention and a feed-forward network.
    pub hybrid: Option<Hybrid>,
    /// Modules that predict further tokens (DeepSeek-V3's multi-token prediction), each a block and an output layer.
    #[serde(default)]
    pub extra_predictions: u32,
    /// The number of parameters that the source states; counted from the shapes if left out.
    pub stated_parameters: Option<f64>,
}

/// Ranks of the products of DeepSeek's latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentAttention {
    /// The rank of the compressed queries; 0: not compressed.
    pub query_rank: u32,
    /// The rank of the compressed keys and values.
    pub kv_rank: u32,
    /// The part of a head that carries no position.
    pub plain_dim: u32,
    /// The part of a head that carries the position; one for all heads of the keys.
    pub rotary_dim: u32,
    /// The width of a value.
    pub value_dim: u32,
}

/// The experts of a mixture.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutedExperts {
    /// RoutedExperts of a block that tokens are routed to.
    pub count: u32,
    /// RoutedExperts that each token goes to.
    pub top_k: u32,
    /// The inner width of one expert.
    pub ffn: u32,
    /// The inner width of the shared experts together; 0: none.
    #[serde(default)]
    pub shared_ffn: u32,
    /// Blocks with a dense feed-forward network instead.
    #[serde(default)]
    pub dense_layers: u32,
    /// The width to which tokens are projected before the experts; `hidden` if left out.
    pub input: Option<u32>,
    /// The most nodes whose experts a token may use; without a limit if left out.
    pub most_nodes: Option<u32>,
}

/// How many layers of a hybrid network are of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hybrid {
    /// Layers of attention.
    pub attention: u32,
    /// Layers of a state-space mixer (Mamba-2).
    pub mamba: u32,
    /// Feed-forward layers, or mixtures of experts.
    pub ffn: u32,
}

/// Parameters of a model by how they are shared between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ParameterCount {
    /// Token embedding.
    pub embedding: f64,
    /// The output layer; 0 if it shares the embedding's weight.
    pub head: f64,
    /// All blocks, without their routed experts.
    pub dense: f64,
    /// The routed experts of all blocks.
    pub experts: f64,
}

impl ParameterCount {
    /// All parameters.
    pub fn total(&self) -> f64 {
        self.embedding + self.head + self.dense + self.experts
    }
}

impl LargeModel {
    /// Heads of keys and values.
    pub fn kv(&self) -> u32 {
        self.kv_heads.unwrap_or(self.heads)
    }

    /// The width of a head.
    pub fn head_width(&self) -> f64 {
        self.head_dim.map_or(f64::from(self.hidden) / f64::from(self.heads), f64::from)
    }

    /// Layers with attention, with a mixer of states, with a dense feed-forward network, and with experts.
    pub fn kinds(&self) -> [f64; 4] {
        let (attention, mamba, ffn) = match self.hybrid {
            Some(hybrid) => (hybrid.attention, hybrid.mamba, hybrid.ffn),
            None => (self.layers, 0, self.layers),
        };
        let dense = self.experts.map_or(ffn, |experts| experts.dense_layers.min(ffn));
        [attention, mamba, dense, ffn - dense].map(f64::from)
    }

    /// Parameters of one layer's attention.
    pub fn attention_parameters(&self) -> f64 {
        let (hidden, heads) = (f64::from(self.hidden), f64::from(self.heads));
        let Some(latent) = self.latent else {
            return hidden * (2.0 * heads + 2.0 * f64::from(self.kv())) * self.head_width();
        };
        let [query_rank, kv_rank, plain, rotary, value] =
            [latent.query_rank, latent.kv_rank, latent.plain_dim, latent.rotary_dim, latent.value_dim]
                .map(f64::from);
        let queries = match query_rank > 0.0 {
            true => hidden * query_rank + query_rank * heads * (plain + rotary),
            false => hidden * heads * (plain + rotary),
        };
        queries + hidden * (kv_rank + rotary) + kv_rank * heads * (plain + value) + heads * value * hidden
    }

    /// The number of parameters, counted from the shapes.
    pub fn parameters(&self) -> ParameterCount {
        let hidden = f64::from(self.hidden);
        let matrices = if self.gated { 3.0 } else { 2.0 };
        let [attention, mamba, dense, mixtures] = self.kinds();
        let embedding = f64::from(self.vocab) * hidden;
        let mut blocks = attention * self.attention_parameters()
            + mamba * 6.2 * hidden * hidden
            + dense * matrices * hidden * f64::from(self.ffn);
        let mut routed = 0.0;
        if let Some(experts) = self.experts {
            let input = experts.input.map_or(hidden, f64::from);
            routed = mixtures * f64::from(experts.count) * matrices * input * f64::from(experts.ffn);
            let projections = if experts.input.is_some() { 2.0 * hidden * input } else { 0.0 };
            blocks += mixtures
                * (f64::from(experts.count) * hidden
                    + matrices * hidden * f64::from(experts.shared_ffn)
                    + projections);
        }
        ParameterCount {
            embedding,
            head: if self.tied { 0.0 } else { embedding },
            dense: blocks,
            experts: routed,
        }
    }
}
