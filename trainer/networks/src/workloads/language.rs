//! BERT (J. Devlin et al., NAACL 2019) over 512 tokens and GPT-2 (A. Radford et al., 2019) over 1,024.
//!
//! Attention is counted in full, as most frameworks compute it, also under a causal mask.

use super::{Class, KernelCost, TableLayer, Workload};

/// Adam reads gradient, parameter and two moments and writes three of them.
const ADAM_PASSES: usize = 7;

/// A workload under construction, and the shape of the sequence that the next layer reads.
struct Draft {
    layers: Vec<TableLayer>,
    tokens: usize,
    width: usize,
}

impl Draft {
    /// Tables with these numbers of rows: the forward pass reads rows, the backward pass adds to the rows' gradients.
    fn embedding(&mut self, name: &str, tables: &[usize]) {
        let moved = (tables.len() + 1) * self.tokens * self.width;
        let params = tables.iter().map(|rows| rows * self.width).collect();
        let gather = KernelCost::new(Class::Elementwise, 0, moved, 0);
        // Dense gradients are written in full.
        let dense = tables.iter().sum::<usize>() * self.width;
        let scatter = KernelCost::new(Class::Elementwise, 0, moved, dense);
        let by_input = Some(KernelCost::new(Class::Elementwise, 0, 0, 0));
        let layer = TableLayer::product(name, params, gather, 0);
        self.layers.push(TableLayer { by_params: Some(scatter), by_input, ..layer });
    }

    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) {
        let (values, weights) = (self.tokens * (inputs + outputs), inputs * outputs);
        let each = KernelCost::new(Class::Product, 2 * self.tokens * weights, values, weights);
        self.layers.push(TableLayer::product(name, vec![weights, outputs], each, self.tokens * inputs));
    }

    fn norm(&mut self, name: &str) {
        self.layers.push(TableLayer::norm(name, self.width, self.tokens * self.width, 2));
    }

    /// `keeps`: whether the input is kept, as a GELU needs it.
    fn element(&mut self, name: &str, width: usize, (forward, backward): (usize, usize), keeps: bool) {
        let x = self.tokens * width;
        let kept = if keeps { x } else { 0 };
        self.layers.push(TableLayer::elementwise(name, forward * x, backward * x, kept));
    }

    /// Scores, softmax with dropout, context: of every head together.
    fn attention(&mut self, name: &str, heads: usize) {
        let (t, d) = (self.tokens, self.width);
        let (scores, flops) = (heads * t * t, 4 * t * t * d);
        let kernel = |launches, flops, values| KernelCost {
            launches,
            ..KernelCost::new(Class::Attention, flops, values, 0)
        };
        let forward = kernel(4, flops, 4 * t * d + 6 * scores);
        let backward = kernel(6, 2 * flops, 8 * t * d + 10 * scores);
        // Queries, keys and values, and the scores before and after dropout.
        let layer = TableLayer::product(name, Vec::new(), forward, 3 * t * d + 2 * scores);
        self.layers.push(TableLayer { by_params: None, by_input: Some(backward), ..layer });
    }

    /// Attention with the products before and after it, and the residual sum.
    fn block(&mut self, at: &str, heads: usize, fused: bool) {
        let d = self.width;
        if fused {
            self.linear(&format!("{at}.qkv"), d, 3 * d);
        } else {
            ["query", "key", "value"].iter().for_each(|name| self.linear(&format!("{at}.{name}"), d, d));
            // The three layers share one input, which counts once.
            self.layers.iter_mut().rev().take(2).for_each(|layer| layer.kept = 0);
        }
        self.attention(&format!("{at}.attention"), heads);
        self.linear(&format!("{at}.proj"), d, d);
        self.element(&format!("{at}.add1"), d, (4, 3), false);
    }

    fn mlp(&mut self, at: &str) {
        let d = self.width;
        self.linear(&format!("{at}.fc1"), d, 4 * d);
        self.element(&format!("{at}.gelu"), 4 * d, (2, 3), true);
        self.linear(&format!("{at}.fc2"), 4 * d, d);
        self.element(&format!("{at}.add2"), d, (4, 3), false);
    }
}

pub(super) fn bert(name: &str, blocks: usize, width: usize) -> Workload {
    let mut draft = Draft { layers: Vec::new(), tokens: 512, width };
    draft.embedding("embeddings", &[30_522, 512, 2]);
    draft.norm("embeddings.norm");
    for block in 0..blocks {
        let at = format!("layer.{block}");
        draft.block(&at, width / 64, false);
        draft.norm(&format!("{at}.norm1"));
        draft.mlp(&at);
        draft.norm(&format!("{at}.norm2"));
    }
    // The pooler looks at the first token alone.
    draft.tokens = 1;
    draft.linear("pooler", width, width);
    Workload::new(name, "a sequence of 512 tokens", draft.layers, ADAM_PASSES)
}

pub(super) fn gpt2(name: &str, blocks: usize, width: usize) -> Workload {
    let mut draft = Draft { layers: Vec::new(), tokens: 1024, width };
    draft.embedding("embeddings", &[50_257, 1024]);
    for block in 0..blocks {
        let at = format!("h.{block}");
        draft.norm(&format!("{at}.ln1"));
        draft.block(&at, width / 64, true);
        draft.norm(&format!("{at}.ln2"));
        draft.mlp(&at);
    }
    draft.norm("ln_f");
    // The head's weights are the embedding's: their gradient is final only at the embedding.
    let (tokens, words) = (draft.tokens, 50_257);
    let (flops, values) = (2 * tokens * width * words, tokens * (width + 3 * words));
    let product = KernelCost::new(Class::Product, flops, values, width * words);
    let backward =
        KernelCost { flops: 2 * product.flops, values: 2 * product.values, launches: 2, ..product };
    // The head keeps its input and the logarithms of the probabilities.
    let head = TableLayer::product("head", Vec::new(), product, tokens * (width + words));
    draft.layers.push(TableLayer { by_params: None, by_input: Some(backward), ..head });
    Workload::new(name, "a sequence of 1,024 tokens", draft.layers, ADAM_PASSES)
}
