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

fn kernel(class: Class, flops: usize, values: usize, weights: usize) -> KernelCost {
    KernelCost { class, flops: flops as u64, values: values as u64, weights: weights as u64, launches: 1 }
}

impl Draft {
    fn layer(
        &mut self,
        name: String,
        params: Vec<usize>,
        forward: KernelCost,
        by_params: Option<KernelCost>,
        by_input: KernelCost,
        kept: usize,
    ) {
        self.layers.push(TableLayer {
            name,
            params,
            forward,
            by_params,
            by_input: Some(by_input),
            kept: kept as u64,
            sync_len: (0, 0),
        });
    }

    /// Tables with these numbers of rows: the forward pass reads rows, the backward pass adds to the rows' gradients.
    fn embedding(&mut self, name: &str, tables: &[usize]) {
        let moved = (tables.len() + 1) * self.tokens * self.width;
        let params = tables.iter().map(|rows| rows * self.width).collect();
        let gather = kernel(Class::Elementwise, 0, moved, 0);
        // Dense gradients are written in full.
        let dense = tables.iter().sum::<usize>() * self.width;
        let scatter = kernel(Class::Elementwise, 0, moved, dense);
        self.layer(name.into(), params, gather, Some(scatter), kernel(Class::Elementwise, 0, 0, 0), 0);
    }

    fn linear(&mut self, name: String, inputs: usize, outputs: usize) {
        let flops = 2 * self.tokens * inputs * outputs;
        let each = || kernel(Class::Product, flops, self.tokens * (inputs + outputs), inputs * outputs);
        let (forward, by_params, by_input) = (each(), each(), each());
        let params = vec![inputs * outputs, outputs];
        self.layer(name, params, forward, Some(by_params), by_input, self.tokens * inputs);
    }

    fn norm(&mut self, name: String) {
        let x = self.tokens * self.width;
        let class = Class::Normalisation;
        let params = vec![self.width; 2];
        self.layer(
            name,
            params,
            kernel(class, 0, 2 * x, 0),
            Some(kernel(class, 0, 2 * x, 0)),
            kernel(class, 0, 3 * x, 0),
            x,
        );
    }

    /// `keeps`: whether the input is kept, as a GELU needs it.
    fn element(&mut self, name: String, width: usize, (forward, backward): (usize, usize), keeps: bool) {
        let x = self.tokens * width;
        let class = Class::Elementwise;
        self.layer(
            name,
            Vec::new(),
            kernel(class, 0, forward * x, 0),
            None,
            kernel(class, 0, backward * x, 0),
            if keeps { x } else { 0 },
        );
    }

    /// Scores, softmax with dropout, context: of every head together.
    fn attention(&mut self, name: String, heads: usize) {
        let (t, d) = (self.tokens, self.width);
        let scores = heads * t * t;
        let flops = 4 * t * t * d;
        let forward =
            KernelCost { launches: 4, ..kernel(Class::Attention, flops, 4 * t * d + 6 * scores, 0) };
        let backward =
            KernelCost { launches: 6, ..kernel(Class::Attention, 2 * flops, 8 * t * d + 10 * scores, 0) };
        // Queries, keys and values, and the scores before and after dropout.
        self.layer(name, Vec::new(), forward, None, backward, 3 * t * d + 2 * scores);
    }

    /// Attention with the products before and after it, and the residual sum.
    fn block(&mut self, at: &str, heads: usize, fused: bool) {
        let d = self.width;
        if fused {
            self.linear(format!("{at}.qkv"), d, 3 * d);
        } else {
            ["query", "key", "value"].iter().for_each(|name| self.linear(format!("{at}.{name}"), d, d));
            // The three layers share one input, which counts once.
            self.layers.iter_mut().rev().take(2).for_each(|layer| layer.kept = 0);
        }
        self.attention(format!("{at}.attention"), heads);
        self.linear(format!("{at}.proj"), d, d);
        self.element(format!("{at}.add1"), d, (4, 3), false);
    }

    fn mlp(&mut self, at: &str) {
        let d = self.width;
        self.linear(format!("{at}.fc1"), d, 4 * d);
        self.element(format!("{at}.gelu"), 4 * d, (2, 3), true);
        self.linear(format!("{at}.fc2"), 4 * d, d);
        self.element(format!("{at}.add2"), d, (4, 3), false);
    }
}

pub(super) fn bert(name: &str, blocks: usize, width: usize) -> Workload {
    let mut draft = Draft { layers: Vec::new(), tokens: 512, width };
    draft.embedding("embeddings", &[30_522, 512, 2]);
    draft.norm("embeddings.norm".into());
    for block in 0..blocks {
        let at = format!("layer.{block}");
        draft.block(&at, width / 64, false);
        draft.norm(format!("{at}.norm1"));
        draft.mlp(&at);
        draft.norm(format!("{at}.norm2"));
    }
    // The pooler looks at the first token alone.
    draft.tokens = 1;
    draft.linear("pooler".into(), width, width);
    Workload::new(name, "a sequence of 512 tokens", draft.layers, ADAM_PASSES)
}

pub(super) fn gpt2(name: &str, blocks: usize, width: usize) -> Workload {
    let mut draft = Draft { layers: Vec::new(), tokens: 1024, width };
    draft.embedding("embeddings", &[50_257, 1024]);
    for block in 0..blocks {
        let at = format!("h.{block}");
        draft.norm(format!("{at}.ln1"));
        draft.block(&at, width / 64, true);
        draft.norm(format!("{at}.ln2"));
        draft.mlp(&at);
    }
    draft.norm("ln_f".into());
    // The head's weights are the embedding's: their gradient is final only at the embedding.
    let (tokens, words) = (draft.tokens, 50_257);
    let product =
        kernel(Class::Product, 2 * tokens * width * words, tokens * (width + 3 * words), width * words);
    let backward =
        KernelCost { flops: 2 * product.flops, values: 2 * product.values, launches: 2, ..product };
    // The head keeps its input and the logarithms of the probabilities.
    draft.layer("head".into(), Vec::new(), product, None, backward, tokens * (width + words));
    Workload::new(name, "a sequence of 1,024 tokens", draft.layers, ADAM_PASSES)
}
