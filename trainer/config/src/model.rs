//! The table `[model]`: the network, and its initial weights.

use crate::{Error, Result};
use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// The network, and its initial weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct ModelConfig {
    /// `mlp`, `cnn`, `resnet18`, `resnet34`, `resnet50`, `vgg11`, `vgg13`, `vgg16`, `vgg19`, `bert`, `gpt` or `llama`.
    pub name: String,
    /// Widths of the mlp's hidden layers.
    pub hidden: Vec<usize>,
    /// Output channels of the cnn's convolutions.
    pub channels: Vec<usize>,
    /// Whether the cnn, or a vgg, has batch norms.
    pub batch_norm: bool,
    /// Whether batch norms normalise over the samples of all ranks instead of each rank's own samples.
    pub sync_batch_norm: bool,
    /// Whether a resnet begins with the stem for large pictures, which reduces height and width fourfold; whether a vgg ends with the
    /// classifier for pictures of 224x224, with two hidden layers of 4,096.
    pub imagenet_stem: bool,
    /// Transformer blocks of the gpt, bert or llama.
    pub layers: usize,
    /// Embedding width of the gpt, bert or llama.
    pub width: usize,
    /// Attention heads of the gpt, bert or llama; the number divides the width.
    pub heads: usize,
    /// Heads of keys and values of the llama, each shared by as many heads of queries; the number divides `model.heads`. 0: as many.
    pub kv_heads: usize,
    /// Width inside the fully connected layers of the llama; 0: 8/3 of the width, rounded up to a multiple of 8.
    pub ffn: usize,
    /// Base of the frequencies by which the llama's positions rotate queries and keys; Llama 3 has 500,000.
    pub rope_base: f64,
    /// Tokens that the bert knows; 30,522 are those of bert-base-uncased.
    pub vocabulary: usize,
    /// Whether the gpt's or llama's output layer shares the weight of its token embedding.
    pub tied: bool,
    /// Dropout probability of the gpt or bert, or of a vgg's classifier for pictures of 224x224; 0: no dropout.
    pub dropout: f64,
    /// Dropout probability of the gpt's, bert's or llama's attention weights; 0: no dropout.
    pub attention_dropout: f64,
    /// Experts of each of the gpt's blocks, in place of its fully connected layers; 0: no mixture of experts.
    pub experts: usize,
    /// Experts that each token goes to: those with the largest probabilities by the router.
    pub experts_per_token: usize,
    /// Tokens of a sample that an expert takes, as a multiple of the mean per expert; the others are dropped. 0: none is dropped.
    pub capacity_factor: f64,
    /// Weight of the loss that balances the tokens over the experts. Its gradient moves the routers; the loss that is reported is without
    /// it.
    pub balance_loss: f64,
    /// A file with initial weights under PyTorch's names: safetensors, or a state dict that `torch.save` wrote (`.pt`, `.pth`); empty:
    /// random initial weights.
    pub weights: String,
    /// The entry of that file with the weights, such as `ema`, or the prefix of their names, such as `encoder_q`; empty: the one of which
    /// most tensors fit.
    pub weights_entry: String,
    /// Whether the tensors of `model.weights` must be exactly the model's, by name and shape. If not, those that fit are taken; the
    /// model's others keep their random initial values.
    pub weights_strict: bool,
    /// Frozen layers, blocks or parameters, which keep their initial values. `*` matches any characters: `["layer1", "*.bn*"]`.
    pub frozen: Vec<String>,
    /// Layers, blocks or parameters that are trained although `model.frozen` names them, with `*` as there: `model.frozen = ["*"]` and
    /// `model.trained = ["fc"]` train the layer `fc` alone.
    pub trained: Vec<String>,
}

impl Default for ModelConfig {
    fn default() -> ModelConfig {
        ModelConfig {
            name: "cnn".into(),
            hidden: vec![128],
            channels: vec![32, 64],
            batch_norm: true,
            sync_batch_norm: false,
            imagenet_stem: false,
            layers: 4,
            width: 128,
            heads: 4,
            kv_heads: 0,
            ffn: 0,
            rope_base: 10_000.0,
            vocabulary: 30_522,
            tied: true,
            dropout: 0.0,
            attention_dropout: 0.0,
            experts: 0,
            experts_per_token: 2,
            capacity_factor: 1.25,
            balance_loss: 0.01,
            weights: String::new(),
            weights_entry: String::new(),
            weights_strict: true,
            frozen: Vec::new(),
            trained: Vec::new(),
        }
    }
}

impl ModelConfig {
    /// Refuses keys of other models.
    pub(crate) fn check(&self) -> Result<()> {
        let (gpt, bert, llama) = (self.name == "gpt", self.name == "bert", self.name == "llama");
        let (vgg, resnet) = (self.name.starts_with("vgg"), self.name.starts_with("resnet"));
        let drops = gpt || bert || vgg && self.imagenet_stem;
        let wrong = [
            (
                self.dropout > 0.0 && !drops,
                "`model.dropout` is for models `gpt` and `bert`, and for a vgg with `model.imagenet_stem`; the others drop nothing",
            ),
            (
                self.attention_dropout > 0.0 && !gpt && !bert && !llama,
                "`model.attention_dropout` is for models `gpt`, `bert` and `llama`; the others have no attention",
            ),
            (self.experts > 0 && !gpt, "`model.experts` are for model `gpt`; the others have none"),
            (
                self.imagenet_stem && !vgg && !resnet,
                "`model.imagenet_stem` is for resnets and vggs; another model has one form",
            ),
            (
                self.frozen.is_empty() && !self.trained.is_empty(),
                "`model.trained` excepts layers from `model.frozen`, which names none; to train these alone, set model.frozen = [\"*\"]",
            ),
            (
                !self.weights_entry.is_empty() && self.weights.is_empty(),
                "`model.weights_entry` is for the file that `model.weights` names; without one, leave it out",
            ),
            (
                !self.weights_strict && self.weights.is_empty(),
                "`model.weights_strict` is for the file that `model.weights` names; without one, leave it out",
            ),
        ];
        match wrong.iter().find(|(wrong, _)| *wrong) {
            Some((_, why)) => Err(Error((*why).into())),
            None => Ok(()),
        }
    }

    /// Whether the model predicts the next token of a text.
    pub fn predicts_tokens(&self) -> bool {
        ["gpt", "llama"].contains(&self.name.as_str())
    }
}
