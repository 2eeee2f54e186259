//! The configuration of a run: one TOML table, every key with a default.
//!
//! ```
//! use allfold_trainer::Config;
//!
//! let config = Config::parse("epochs = 2\nlr = 0.1", "run.toml").unwrap();
//! assert_eq!((config.model.as_str(), config.epochs, config.lr), ("cnn", 2, 0.1));
//!
//! let error = Config::parse("epochs = 2\nbach = 16", "run.toml").unwrap_err();
//! assert_eq!(error.to_string(), "run.toml:2:1: unknown key `bach`; the nearest is `batch`");
//! ```

mod check;
mod default;
mod parallel;

pub use parallel::{Parallel, ScheduleName, StageSharing};

use crate::buckets::Caps;
use crate::scaler::{GradScaler, ScalerOptions};
use crate::unknown::{suggestion, unknown};
use crate::{Error, Result};
use allfold_kernels::nn::Narrow;
use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// A training run. The configuration determines every loss and weight, on any backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `mlp`, `cnn`, `resnet18`, `resnet34`, `resnet50` or `gpt`.
    pub model: String,
    /// Widths of the mlp's hidden layers.
    pub hidden: Vec<usize>,
    /// Output channels of the cnn's convolutions.
    pub channels: Vec<usize>,
    /// Whether the cnn has batch norms.
    pub batch_norm: bool,
    /// Whether a resnet begins with the stem for large pictures, which reduces height and width fourfold.
    pub imagenet_stem: bool,
    /// Transformer blocks of the gpt.
    pub layers: usize,
    /// Embedding width of the gpt.
    pub width: usize,
    /// Attention heads of the gpt; the number divides the width.
    pub heads: usize,
    /// Whether the gpt's output layer shares the weight of its token embedding.
    pub tied: bool,
    /// Dropout probability of the gpt; 0: no dropout.
    pub dropout: f64,
    /// Dropout probability of the gpt's attention weights; 0: no dropout.
    pub attention_dropout: f64,
    /// Frozen layers, or prefixes of parameter names: these parameters keep their initial values.
    pub frozen: Vec<String>,
    /// `cross_entropy`, or `mse` against the one-hot label.
    pub loss: String,
    /// Whether batch norms normalise over the samples of all ranks instead of each rank's own samples.
    pub sync_batch_norm: bool,
    /// The type of parameters, gradients and activations: `f32` or `f64`.
    pub dtype: String,
    /// Autocast's type: `none`, `f16` or `bf16`. Parameters stay f32.
    pub amp: String,
    /// `cpu`, or `cuda`: one GPU for each rank; ranks share GPUs in turn if there are fewer.
    pub device: String,
    /// Whether pictures on GPUs are laid out with channels last, as tensor cores need them. Results differ by rounding only.
    pub channels_last: bool,
    /// How ranks on GPUs sum gradients: `nccl` (NCCL's collectives), `scheduled` (Allfold's algorithms over NCCL's messages),
    /// `device` (a fused kernel, for ranks of one process), `host` (the CPU's communicator), or `auto` (the first of `nccl`,
    /// `device` and `host` that is possible). `scheduled`, `device` and `host` give the CPU's bits.
    pub exchange: String,
    /// Compute threads of each rank. The results do not depend on their number.
    pub threads: usize,
    /// `single`, `ddp`, `data_parallel`, `parameter_server`, `zero1`, `zero2`, `zero3`, `pipeline`,
    /// `tensor` or `context`.
    pub strategy: String,
    /// Seed of the initial weights and of the order of samples.
    pub seed: u64,
    /// Passes over the training set.
    pub epochs: u64,
    /// Largest number of steps; 0: no limit.
    pub max_steps: u64,
    /// Samples per step on each rank. The last batch of an epoch may be smaller.
    pub batch: usize,
    /// Micro-batches that a rank's batch is cut into. Gradients are accumulated, and exchanged once, with the last micro-batch.
    pub accumulate: usize,
    /// Whether each epoch has a new order of samples.
    pub shuffle: bool,
    /// What happens to an epoch's last samples if they do not divide among the ranks: dropped (true), or filled up by repeated
    /// samples (false).
    pub drop_last: bool,
    /// `digits`, `mnist`, `fashion_mnist`, `cifar10`, `text` or `synthetic`.
    pub data: String,
    /// The folder that data is read from.
    pub data_dir: String,
    /// Tokens of a sample of text.
    pub positions: usize,
    /// Samples of the synthetic set.
    pub synthetic_samples: usize,
    /// Channels, height and width of a synthetic sample.
    pub synthetic_shape: [usize; 3],
    /// Classes of the synthetic set; for the gpt, its vocabulary.
    pub synthetic_classes: usize,
    /// Black border in pixels around each training picture, from which a random crop of the original size is taken; 0: no crop.
    pub crop_padding: usize,
    /// Whether each training picture is mirrored left to right with probability 1/2.
    pub flip: bool,
    /// Threads of each rank that prepare batches ahead of their steps; 0: batches are prepared in their step.
    pub workers: usize,
    /// Batches that each of these threads prepares ahead.
    pub prefetch: usize,
    /// A safetensors file with initial weights under PyTorch's names; empty: random initial weights.
    pub weights: String,
    /// Number of training samples to use, from the first; 0: all.
    pub train_samples: usize,
    /// Number of training samples, from the last, that are held out and that the run is scored on, instead of on the test set;
    /// 0: score on the test set.
    pub validation: usize,
    /// `sgd`, `adam`, `adamw` or `lars`.
    pub optimiser: String,
    /// Learning rate.
    pub lr: f64,
    /// Whether the learning rate is multiplied by the number of ranks.
    pub scale_lr: bool,
    /// `constant`, `step`, `milestones`, `exponential`, `polynomial`, `cosine`, `restarts` or `one_cycle`.
    pub lr_schedule: String,
    /// Warm-up steps, in which the rate rises linearly before the schedule begins.
    pub warmup_steps: u64,
    /// The fraction of the rate that the warm-up starts from.
    pub warmup_from: f64,
    /// Steps between two changes of the step schedule; length of the first period of restarts.
    pub lr_every: u64,
    /// Factor of the rate in step, milestones and exponential; factor of each next period's length in restarts.
    pub lr_factor: f64,
    /// Steps at which the milestones schedule changes the rate.
    pub lr_milestones: Vec<u64>,
    /// The rate at which a cosine ends.
    pub lr_floor: f64,
    /// The polynomial's power.
    pub lr_power: f64,
    /// Momentum of sgd and lars; 0 is plain gradient descent.
    pub momentum: f64,
    /// Weight decay: added to the gradient; with adamw, subtracted from the weights.
    pub weight_decay: f64,
    /// Nesterov's momentum, for sgd.
    pub nesterov: bool,
    /// Decay of adam's mean of gradients.
    pub beta1: f64,
    /// Decay of adam's mean of squared gradients.
    pub beta2: f64,
    /// Added to adam's denominator.
    pub eps: f64,
    /// Trust coefficient of lars: the length of a step relative to the weights.
    pub trust: f64,
    /// Largest norm of all gradients together; larger gradients are scaled down to it; 0: no clipping.
    pub clip_norm: f64,
    /// Initial loss scale, against underflow of gradients; 0: no loss scale. A loss that is not finite ends the run; with `amp`
    /// f16 and a loss scale, ten such losses in a row do.
    pub loss_scale: f64,
    /// Factor of the loss scale after `scale_interval` steps without overflow.
    pub scale_growth: f64,
    /// Factor of the loss scale after an overflow. All ranks skip that step; running statistics take only its finite values.
    pub scale_backoff: f64,
    /// Steps without overflow after which the loss scale grows.
    pub scale_interval: u64,
    /// Smallest loss scale.
    pub scale_floor: f64,
    /// Size of ddp's first bucket in KiB: the bucket closes once it holds this much; 0: it holds one parameter.
    pub first_bucket_kib: u64,
    /// Size of every further bucket in KiB; 0: each holds one parameter.
    pub bucket_kib: u64,
    /// How a bucket is compressed for the exchange: `none`, `fp16`, `bf16`, `powersgd`, `topk`, `int8` or `local_sgd`.
    pub hook: String,
    /// Rank of powersgd's matrices.
    pub powersgd_rank: usize,
    /// The fraction of a bucket's elements that topk sends.
    pub topk_share: f64,
    /// Steps between two averages of the weights with local_sgd.
    pub local_steps: u64,
    /// Parameter groups for ddp, as prefixes of parameter names: each group has its own buckets. Bucket sizes, hook and the order
    /// of sending are common to all groups.
    pub groups: Vec<String>,
    /// Whether ddp searches in every step for parameters without a gradient.
    pub find_unused: bool,
    /// Whether the parameters without a gradient are the same in all steps as in the first.
    pub static_graph: bool,
    /// Whether rank 0's running statistics are broadcast before every step, not only before evaluation.
    pub broadcast_buffers: bool,
    /// Whether samples are neither repeated nor dropped: ranks without samples take part in the last steps with empty batches.
    pub uneven: bool,
    /// The folder of checkpoints, written by rank 0. A run that writes checkpoints and does not resume refuses a folder that
    /// contains some.
    pub checkpoint_dir: String,
    /// Steps between two checkpoints; the last step always has one; 0: no checkpoints.
    pub checkpoint_every: u64,
    /// How many of the newest checkpoints are kept.
    pub checkpoint_keep: usize,
    /// Whether the run continues from the newest checkpoint, if there is one. `epochs` and `max_steps` may differ from the
    /// checkpoint's, unless the learning rates depend on them (polynomial, cosine, one_cycle).
    pub resume: bool,
    /// How the strategy divides the work.
    pub parallel: Parallel,
}

/// The names by which a configuration asks for a device.
pub const DEVICES: &[(&str, &str)] = &[("cpu", "this machine's processors"), ("cuda", "NVIDIA GPUs")];

/// The names by which a configuration asks for a way to add up between GPUs.
pub const EXCHANGES: &[(&str, &str)] = &[
    ("auto", "NCCL where it is, else the host"),
    ("nccl", "NCCL's collectives"),
    ("scheduled", "this project's algorithms over NCCL's messages"),
    ("device", "a fused kernel over the buffers of ranks that share a process"),
    ("host", "the communicator of the CPUs"),
];

impl Config {
    /// Reads a TOML text; `name` is the file's, for messages.
    ///
    /// # Errors
    /// Malformed TOML, a wrong type or an unknown key (with line and column, and the nearest key), or a value that
    /// [`Config::check`] refuses.
    pub fn parse(text: &str, name: &str) -> Result<Config> {
        let config: Config =
            toml::from_str(text).map_err(|error| Error::Config(located(&error, text, name)))?;
        config.check().map_err(|error| Error::Config(format!("{name}: {error}")))?;
        Ok(config)
    }

    /// Replaces the value of one key, written as in a file; a word needs no quotes.
    ///
    /// # Errors
    /// An unknown key, with the nearest one, or a value of another type. Whether it makes sense is for [`Config::check`].
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let wrong = |error: String| {
            Error::Config(format!("`{key}`: {}", error.lines().collect::<Vec<_>>().join("; ")))
        };
        let mut table = toml::Table::try_from(&*self).map_err(|error| wrong(error.to_string()))?;
        let place = match key.split_once('.') {
            Some(("parallel", inner)) => table.get_mut("parallel").and_then(|table| table.get_mut(inner)),
            _ => table.get_mut(key),
        };
        let Some(place) = place else {
            let inner = Parallel::FIELD_NAMES.iter().map(|name| format!("parallel.{name}"));
            let names: Vec<String> =
                Config::FIELD_NAMES.iter().map(|name| name.to_string()).chain(inner).collect();
            return Err(unknown("key", key, names.iter().map(String::as_str)));
        };
        let read = toml::from_str::<toml::Table>(&format!("value = {value}"));
        let read = read.ok().and_then(|mut read| read.remove("value"));
        *place = read.unwrap_or_else(|| toml::Value::String(value.into()));
        *self = table.try_into().map_err(|error: toml::de::Error| wrong(error.message().into()))?;
        Ok(())
    }

    /// A configuration file with every key, its meaning and its default.
    pub fn documented() -> String {
        let defaults = toml::Table::try_from(Config::default()).unwrap_or_default();
        let keys = Config::FIELD_NAMES.iter().zip(Config::FIELD_DOCS).filter(|(key, _)| **key != "parallel");
        let flat = keys.filter_map(|(key, meaning)| documented(key, meaning, defaults.get(*key)?));
        let parallel = toml::Table::try_from(Parallel::default()).unwrap_or_default();
        let keys = Parallel::FIELD_NAMES.iter().zip(Parallel::FIELD_DOCS);
        let nested = keys.filter_map(|(key, meaning)| documented(key, meaning, parallel.get(*key)?));
        let nested =
            nested.enumerate().map(|(at, text)| if at == 0 { format!("[parallel]\n{text}") } else { text });
        flat.chain(nested).collect::<Vec<_>>().join("\n")
    }

    /// The sizes at which ddp's buckets close.
    pub fn caps(&self) -> Caps {
        Caps { first: self.first_bucket_kib.saturating_mul(1024), rest: self.bucket_kib.saturating_mul(1024) }
    }

    /// The loss scaler, where there is one.
    pub fn scaler(&self) -> Option<GradScaler> {
        let rules = ScalerOptions {
            growth: self.scale_growth,
            backoff: self.scale_backoff,
            interval: self.scale_interval,
            floor: self.scale_floor,
        };
        (self.loss_scale > 0.0).then(|| GradScaler::new(self.loss_scale as f32, rules))
    }

    /// Autocast's type, if autocast is on.
    pub fn narrow(&self) -> Option<Narrow> {
        match self.amp.as_str() {
            "f16" => Some(Narrow::F16),
            "bf16" => Some(Narrow::Bf16),
            _ => None,
        }
    }

    /// The data that a run is scored on, in a word.
    pub fn scored_on(&self) -> &'static str {
        if self.validation > 0 { "validation" } else { "test" }
    }

    /// Samples in each of the micro-batches that `samples` of a step are cut into; the last one may have fewer.
    pub fn micro_batch(&self, samples: usize) -> usize {
        samples.div_ceil(self.accumulate.max(1)).max(1)
    }
}

/// A key of a documented file: its meaning as comments, and its default.
fn documented(key: &str, meaning: &str, default: &toml::Value) -> Option<String> {
    let meaning = meaning.lines().map(|line| format!("# {}\n", line.trim())).collect::<String>();
    Some(format!("{meaning}{key} = {default}\n"))
}

/// `file:line:column: what is wrong and what would be right`, in one line.
fn located(error: &toml::de::Error, text: &str, name: &str) -> String {
    let at = error.span().map_or(0, |span| span.start).min(text.len());
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
    let message = error.message().lines().collect::<Vec<_>>().join("; ");
    let mut quoted = message.split('`').skip(1).step_by(2);
    let what = match (message.starts_with("unknown field"), quoted.next()) {
        (true, Some(key)) => {
            format!("unknown key `{key}`; {}", suggestion(key, &quoted.collect::<Vec<_>>()))
        }
        _ => message,
    };
    format!("{name}:{line}:{column}: {what}")
}

#[cfg(test)]
mod tests;
