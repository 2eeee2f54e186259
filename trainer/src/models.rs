//! The networks in one table that configuration and tests read.

pub use allfold_networks::models::{
    Bert, Cnn, Experts, Gpt, Llama, ResNet, Vgg, bert, cnn, gpt, llama, mlp, moe_gpt, resnet, vgg,
};

use crate::added::{Added, Named, no_such_type, typed};
use crate::{Config, Network, Result, SampleForm};
use allfold_config::{AutocastType, ElementType, LossName, ModelConfig};
use allfold_kernels::nn::{Float, LossKind, Narrow};
use allfold_networks::{Mesh, NetworkSplit};

/// The names by which a configuration selects a model.
pub const MODELS: &[(&str, &str)] = &[
    ("mlp", "fully connected layers with rectifiers between them"),
    ("cnn", "blocks of 3x3 convolution, batch norm and rectifier, then a pooling and a linear layer"),
    ("resnet18", "a residual network of 18 layers"),
    ("resnet34", "a residual network of 34 layers"),
    ("resnet50", "a residual network of 50 layers, with bottlenecks"),
    ("vgg11", "a VGG of 11 layers"),
    ("vgg13", "a VGG of 13 layers"),
    ("vgg16", "a VGG of 16 layers"),
    ("vgg19", "a VGG of 19 layers"),
    ("bert", "a transformer that classifies texts"),
    ("gpt", "a transformer that predicts the next token of a text"),
    ("llama", "a gpt with the blocks of Llama: rotary positions, grouped queries, gated layers"),
];

/// Builds a network over samples of a form.
pub type BuildModel<F> = fn(&Config, SampleForm) -> Result<Network<F>>;

/// A model for `model.name = "NAME"`.
#[derive(Clone, Copy, Debug)]
pub struct OwnModel {
    /// The name by which a configuration selects the model.
    pub name: &'static str,
    /// A description of the model in a few words.
    pub about: &'static str,
    /// Builds the model for `precision.dtype = "f32"`.
    pub f32: BuildModel<f32>,
    /// Builds the model for `precision.dtype = "f64"`.
    pub f64: BuildModel<f64>,
}

impl Named for OwnModel {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// The models that the program added.
pub(crate) static ADDED: Added<OwnModel> = Added::to("model", MODELS);

/// The model that `config` selects, over samples of the form `samples`.
///
/// # Errors
/// If no model has that name, or its layers do not fit the samples.
pub fn build<F: Float>(config: &Config, samples: SampleForm) -> Result<Network<F>> {
    /// Compiled here for both types; otherwise every crate that builds a network would compile all layers and their kernels.
    static BUILT: (BuildModel<f32>, BuildModel<f64>) = (built, built);
    typed::<BuildModel<F>>(&BUILT.0, &BUILT.1).ok_or_else(no_such_type::<F>)?(config, samples)
}

type BuildPart<F> = fn(&Config, SampleForm, &Mesh, usize) -> Result<(Network<F>, NetworkSplit)>;

/// The part that `rank` of `mesh` has of the network that [`build`] makes.
///
/// # Errors
/// Those of [`build`]; a network that the ranks cannot share in this way.
pub fn build_part<F: Float>(
    config: &Config,
    samples: SampleForm,
    mesh: &Mesh,
    rank: usize,
) -> Result<(Network<F>, NetworkSplit)> {
    /// As in [`build`].
    static BUILT: (BuildPart<f32>, BuildPart<f64>) = (part_built, part_built);
    typed::<BuildPart<F>>(&BUILT.0, &BUILT.1).ok_or_else(no_such_type::<F>)?(config, samples, mesh, rank)
}

fn part_built<F: Float>(
    config: &Config,
    samples: SampleForm,
    mesh: &Mesh,
    rank: usize,
) -> Result<(Network<F>, NetworkSplit)> {
    let whole = built(config, samples)?;
    Ok(NetworkSplit::of(whole, mesh, rank, config.parallel.sequence_parallel)?)
}

fn built<F: Float>(config: &Config, samples: SampleForm) -> Result<Network<F>> {
    let SampleForm { shape, classes } = samples;
    let network = match config.model.name.as_str() {
        "mlp" => mlp(shape.0 * shape.1 * shape.2, &config.model.hidden, classes),
        "cnn" => cnn(&Cnn {
            shape,
            channels: &config.model.channels,
            batch_norm: config.model.batch_norm,
            classes,
        }),
        "resnet18" => residual(config, 18, samples),
        "resnet34" => residual(config, 34, samples),
        "resnet50" => residual(config, 50, samples),
        "vgg11" => convolutions(config, 11, samples),
        "vgg13" => convolutions(config, 13, samples),
        "vgg16" => convolutions(config, 16, samples),
        "vgg19" => convolutions(config, 19, samples),
        "bert" => encoder(config, shape.0 * shape.1 * shape.2, classes),
        "gpt" => transformer(config, shape.0 * shape.1 * shape.2, classes),
        "llama" => rotary(config, shape.0 * shape.1 * shape.2, classes),
        other => {
            let own = ADDED.find(other).and_then(|own| typed::<BuildModel<F>>(&own.f32, &own.f64));
            let Some(build) = own else { return Err(crate::unknown::unknown("model", other, ADDED.names())) };
            return settle(config, build(config, samples)?);
        }
    }?;
    settle(config, network)
}

fn residual<F: Float>(
    config: &Config,
    layers: usize,
    SampleForm { shape, classes }: SampleForm,
) -> allfold_networks::Result<Network<F>> {
    resnet(&ResNet { layers, imagenet_stem: config.model.imagenet_stem, shape, classes })
}

fn convolutions<F: Float>(
    config: &Config,
    layers: usize,
    SampleForm { shape, classes }: SampleForm,
) -> allfold_networks::Result<Network<F>> {
    let ModelConfig { batch_norm, imagenet_stem: large_classifier, dropout, .. } = config.model;
    vgg(&Vgg { layers, batch_norm, large_classifier, dropout, shape, classes })
}

fn encoder<F: Float>(
    config: &Config,
    positions: usize,
    classes: usize,
) -> allfold_networks::Result<Network<F>> {
    let ModelConfig { vocabulary, layers, width, heads, dropout, attention_dropout, .. } = config.model;
    let most_positions = config.data.positions;
    bert(&Bert {
        vocabulary,
        positions,
        most_positions,
        layers,
        width,
        heads,
        dropout,
        attention_dropout,
        classes,
    })
}

fn transformer<F: Float>(
    config: &Config,
    positions: usize,
    vocabulary: usize,
) -> allfold_networks::Result<Network<F>> {
    let ModelConfig { layers, width, heads, dropout, attention_dropout, tied, .. } = config.model;
    let parts = Gpt { vocabulary, positions, layers, width, heads, dropout, attention_dropout, tied };
    match config.model.experts {
        0 => gpt(&parts),
        experts => {
            let ModelConfig { experts_per_token: chosen, capacity_factor, balance_loss: balance, .. } =
                config.model;
            moe_gpt(&parts, &Experts { experts, chosen, capacity_factor, balance })
        }
    }
}

fn rotary<F: Float>(
    config: &Config,
    positions: usize,
    vocabulary: usize,
) -> allfold_networks::Result<Network<F>> {
    let ModelConfig { layers, width, heads, rope_base, attention_dropout, tied, .. } = config.model;
    let kv_heads = if config.model.kv_heads > 0 { config.model.kv_heads } else { heads };
    let ffn =
        if config.model.ffn > 0 { config.model.ffn } else { (8 * width).div_ceil(3).next_multiple_of(8) };
    llama(&Llama {
        vocabulary,
        positions,
        layers,
        width,
        heads,
        kv_heads,
        ffn,
        rope_base,
        attention_dropout,
        tied,
    })
}

/// Applies the keys for every model (synchronised batch norms, frozen parameters, the loss), and checks that groups have members.
fn settle<F: Float>(config: &Config, mut network: Network<F>) -> Result<Network<F>> {
    if config.model.sync_batch_norm && network.synchronise() == 0 {
        let what = "`model.sync_batch_norm` is for batch norms, and the model has none";
        return Err(crate::Error::Config(what.into()));
    }
    network.freeze(&config.model.frozen, &config.model.trained)?;
    network.recompute(config.training.recompute)?;
    let named = |prefix: &String| network.params().iter().any(|place| place.name.starts_with(&**prefix));
    if let Some(prefix) = config.ddp.groups.iter().find(|prefix| !named(prefix)) {
        let names = network.names().iter().map(String::as_str);
        return Err(crate::unknown::unknown("group of parameters", prefix, names));
    }
    if config.training.loss == LossName::Mse {
        network.set_loss(LossKind::Mse);
    }
    Ok(network)
}

/// Autocast's type for the kernels, if autocast is on.
pub fn narrow(amp: AutocastType) -> Option<Narrow> {
    match amp {
        AutocastType::None => None,
        AutocastType::F16 => Some(Narrow::F16),
        AutocastType::Bf16 => Some(Narrow::Bf16),
    }
}

/// About how many bytes each rank will hold, see [`crate::Network::memory`]: for a check before a run starts.
///
/// # Errors
/// A configuration that makes no sense.
pub fn memory(config: &Config, samples: SampleForm) -> Result<u64> {
    fn of<F: Float>(config: &Config, samples: SampleForm) -> Result<u64> {
        let network = build::<F>(config, samples)?;
        // Adam keeps one vector more than SGD's velocity, which the network counts; accumulated gradients are one vector more.
        let more =
            u64::from(config.optimiser.name.starts_with("adam")) + u64::from(config.training.accumulate > 1);
        let vector = (network.param_count() * size_of::<F>()) as u64;
        Ok(network
            .memory(config.micro_batch(config.training.batch))
            .saturating_add(more.saturating_mul(vector)))
    }
    match config.precision.dtype {
        ElementType::F64 => of::<f64>(config, samples),
        ElementType::F32 => of::<f32>(config, samples),
    }
}
