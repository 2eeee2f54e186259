//! BERT with a head that classifies texts (J. Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
//! Understanding", NAACL 2019).
//!
//! ```text
//! tokens [T] - words + positions + segment - LayerNorm - dropout - blocks - first position - pooler - tanh - dropout - classifier
//! block      x -query, key, value-attention-dense-dropout-+-LayerNorm-dense-gelu-dense-dropout-+-LayerNorm->
//!            '--------------------------------------------'         '---------------------------'
//! ```
//!
//! Each position attends to all positions, and a text is one segment. Parameters have the names of `BertForSequenceClassification` of
//! Hugging Face's `transformers`, so that its weights can be loaded; initial weights are normal with deviation 0.02.

use crate::layers::{
    Add, Attention, Dropout, Embedding, FirstPosition, Gelu, Init, LayerNorm, Linear, Positions, Tanh,
};
use crate::network::{Builder, Network};
use crate::{Error, Result};
use allfold_kernels::nn::{self, Float};

/// The parts of the network.
#[derive(Clone, Copy, Debug)]
pub struct Bert {
    /// The size of the vocabulary.
    pub vocabulary: usize,
    /// Tokens of a sample, T.
    pub positions: usize,
    /// The number of rows of the table of positions, T or more: 512 in the published models.
    pub most_positions: usize,
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
    /// The number of classes.
    pub classes: usize,
}

/// What BERT's layer norms add to the variance.
const EPS: f64 = 1e-12;
/// Initial values of weights and tables.
const NORMAL: Init = Init::Normal(0.02);

/// The network, with a row of logits for each sample.
///
/// # Errors
/// If the heads do not divide the width, a part is 0, or there are more positions than rows for them.
pub fn bert<F: Float>(parts: &Bert) -> Result<Network<F>> {
    let Bert { vocabulary, positions, most_positions, layers, width, heads, classes, .. } = *parts;
    if [vocabulary, positions, width, heads, classes].contains(&0) || !width.is_multiple_of(heads) {
        return Err(Error::Network(format!(
            "a bert of width {width} with {heads} heads, {positions} positions, {vocabulary} tokens and {classes} classes; the \
             heads must divide the width, and all must be 1 or more"
        )));
    }
    if positions > most_positions {
        return Err(Error::Network(format!(
            "samples have {positions} positions, and the bert's table has {most_positions}; set `data.positions` to {positions} or more"
        )));
    }
    let table = nn::EmbeddingShape { rows: vocabulary, width };
    let mut stack = Stack { builder: Builder::new(positions), parts };
    let mut x =
        stack.push("bert.embeddings.word_embeddings", Embedding::new(positions, table, NORMAL), &[0])?;
    let rows = Positions::new(positions, width, NORMAL).of(most_positions);
    x = stack.push("bert.embeddings.position_embeddings", rows, &[x])?;
    x = stack.push(
        "bert.embeddings.token_type_embeddings",
        Positions::first_segment(positions, width, NORMAL),
        &[x],
    )?;
    x = stack.norm("bert.embeddings.LayerNorm", x)?;
    x = stack.dropped("bert.embeddings.dropout", positions * width, x)?;
    for layer in 0..layers {
        x = stack.block(&format!("bert.encoder.layer.{layer}"), x)?;
    }
    x = stack.push("bert.pooler", FirstPosition::new(positions, width), &[x])?;
    x = stack.linear("bert.pooler.dense", 1, (width, width), x)?;
    x = stack.push("bert.pooler.activation", Tanh::new(width), &[x])?;
    x = stack.dropped("dropout", width, x)?;
    stack.linear("classifier", 1, (width, classes), x)?;
    stack.builder.build(1)
}

/// A network under construction.
struct Stack<'a, F> {
    builder: Builder<F>,
    parts: &'a Bert,
}

impl<F: Float> Stack<'_, F> {
    fn push(
        &mut self,
        name: &str,
        layer: impl crate::layers::Layer<F> + 'static,
        from: &[usize],
    ) -> Result<usize> {
        self.builder.push(name, layer, from)
    }

    fn linear(&mut self, name: &str, rows: usize, shape: (usize, usize), x: usize) -> Result<usize> {
        self.push(name, Linear::rows(rows, shape, NORMAL, Some(Init::Constant(0.0))), &[x])
    }

    fn norm(&mut self, name: &str, x: usize) -> Result<usize> {
        self.push(name, LayerNorm::new(self.parts.positions, self.parts.width).with_eps(EPS), &[x])
    }

    fn dropped(&mut self, name: &str, count: usize, x: usize) -> Result<usize> {
        match self.parts.dropout > 0.0 {
            true => self.push(name, Dropout::new(self.parts.dropout, count), &[x]),
            false => Ok(x),
        }
    }

    /// The sum of two branches, normalised.
    fn joined(&mut self, name: &str, branches: &[usize; 2]) -> Result<usize> {
        let sum =
            self.push(&format!("{name}.add"), Add::new(self.parts.positions * self.parts.width), branches)?;
        self.norm(&format!("{name}.LayerNorm"), sum)
    }

    fn block(&mut self, name: &str, x: usize) -> Result<usize> {
        let Bert { positions, width, heads, attention_dropout, .. } = *self.parts;
        let whole = positions * width;
        let queries = Linear::rows(positions, (width, 3 * width), NORMAL, Some(Init::Constant(0.0)))
            .in_parts(&[
                ("query.weight", "query.bias"),
                ("key.weight", "key.bias"),
                ("value.weight", "value.bias"),
            ]);
        let mut y = self.push(&format!("{name}.attention.self"), queries, &[x])?;
        let shape = nn::AttentionShape { positions, width, heads, kv_heads: heads, causal: false };
        y = self.push(
            &format!("{name}.attention.softmax"),
            Attention::new(shape).dropping(attention_dropout),
            &[y],
        )?;
        y = self.linear(&format!("{name}.attention.output.dense"), positions, (width, width), y)?;
        y = self.dropped(&format!("{name}.attention.output.dropout"), whole, y)?;
        let attended = self.joined(&format!("{name}.attention.output"), &[y, x])?;
        y = self.linear(&format!("{name}.intermediate.dense"), positions, (width, 4 * width), attended)?;
        y = self.push(&format!("{name}.intermediate.gelu"), Gelu::new(4 * whole), &[y])?;
        y = self.linear(&format!("{name}.output.dense"), positions, (4 * width, width), y)?;
        y = self.dropped(&format!("{name}.output.dropout"), whole, y)?;
        self.joined(&format!("{name}.output"), &[y, attended])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// bert-base-uncased has 109,482,240 parameters; a classifier of two classes adds 1,538.
    #[test]
    fn published_size_and_names() {
        let parts = Bert {
            vocabulary: 30_522,
            positions: 128,
            most_positions: 512,
            layers: 12,
            width: 768,
            heads: 12,
            dropout: 0.1,
            attention_dropout: 0.1,
            classes: 2,
        };
        let network = bert::<f32>(&parts).unwrap();
        assert_eq!(network.param_count(), 109_482_240 + 1_538);
        let names: Vec<&str> = network.params().iter().map(|place| &*place.name).collect();
        for name in [
            "bert.embeddings.word_embeddings.weight",
            "bert.embeddings.position_embeddings.weight",
            "bert.embeddings.token_type_embeddings.weight",
            "bert.embeddings.LayerNorm.bias",
            "bert.encoder.layer.11.attention.self.key.weight",
            "bert.encoder.layer.0.attention.self.value.bias",
            "bert.encoder.layer.0.attention.output.dense.weight",
            "bert.encoder.layer.0.attention.output.LayerNorm.weight",
            "bert.encoder.layer.0.intermediate.dense.bias",
            "bert.encoder.layer.0.output.LayerNorm.weight",
            "bert.pooler.dense.weight",
            "classifier.bias",
        ] {
            assert!(names.contains(&name), "{name}");
        }
        let refused = |parts: Bert| bert::<f32>(&parts).err().unwrap().to_string();
        assert!(refused(Bert { positions: 513, ..parts }).contains("set `data.positions` to 513 or more"));
        assert!(refused(Bert { heads: 7, ..parts }).contains("the heads must divide the width"));
    }
}
