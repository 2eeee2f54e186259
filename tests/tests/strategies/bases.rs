//! The runs that the rows are tried on, by model.

use crate::positions;
use allfold_trainer::Config;
use allfold_trainer::config::ElementType;

/// A run of ten steps of the digits' network in f64.
pub(crate) fn digits() -> Config {
    Config::default().with(|c| {
        c.model.name = "mlp".into();
        c.model.hidden = vec![24, 20, 16, 16, 12, 12, 10, 10];
        c.precision.dtype = ElementType::F64;
        c.data.train_samples = 240;
        c.training.max_steps = 10;
        c.optimiser.lr = 0.05;
        c.data.validation = 40;
    })
}

/// The GPT whose head is tied to its embedding.
pub(crate) fn gpt() -> Config {
    digits().with(|c| {
        c.model.name = "gpt".into();
        c.data.name = "synthetic".into();
        c.data.synthetic_samples = 300;
        c.data.synthetic_classes = 13;
        c.data.positions = positions();
        c.model.layers = 4;
        c.model.width = 16;
        c.model.heads = 4;
        c.model.tied = true;
        c.model.hidden = Vec::new();
    })
}

/// The GPT with mixtures of experts, of which some are full and drop tokens.
pub(crate) fn mixture() -> Config {
    gpt().with(|c| {
        c.model.experts = 8;
        c.model.experts_per_token = 2;
        c.model.capacity_factor = 1.0;
        c.model.balance_loss = 0.1;
    })
}

/// A llama in which pairs of heads of queries share keys and values.
pub(crate) fn llama() -> Config {
    gpt().with(|c| {
        c.model.name = "llama".into();
        c.model.heads = 8;
        c.model.kv_heads = 4;
        c.model.ffn = 24;
        c.model.tied = false;
    })
}
