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

use crate::buckets::Caps;
use crate::scaler::{GradScaler, ScalerOptions};
use crate::unknown::{suggestion, unknown};
use crate::{Error, Result};
use allfold_kernels::nn::Narrow;
use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// A training run. With its seed it determines every loss and weight, whatever it runs on.
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
    /// Whether a resnet has the stem for large pictures, which shrinks them fourfold.
    pub imagenet_stem: bool,
    /// Blocks of the gpt.
    pub layers: usize,
    /// Numbers per position of the gpt.
    pub width: usize,
    /// Attention heads of the gpt; they divide its width.
    pub heads: usize,
    /// Whether the gpt's head shares the weight of its token table.
    pub tied: bool,
    /// The share of zeros that the gpt's dropout makes; 0: there is none.
    pub dropout: f64,
    /// The share of its attentions' probabilities that the gpt drops; 0: none.
    pub attention_dropout: f64,
    /// Layers, or prefixes of names, whose parameters keep their first values.
    pub frozen: Vec<String>,
    /// `cross_entropy`, or `mse` from the label as ones and zeros.
    pub loss: String,
    /// Whether batch norms normalise by the samples of all ranks, instead of each rank's own.
    pub sync_batch_norm: bool,
    /// `f32` or `f64`.
    pub dtype: String,
    /// `none`, or what autocast computes in: `f16` or `bf16`. Parameters stay f32.
    pub amp: String,
    /// What computes: `cpu`, or `cuda` (a GPU for each rank, in turn where there are fewer).
    pub device: String,
    /// Whether pictures on GPUs have their channels last, as tensor cores want them. Results differ by rounding alone.
    pub channels_last: bool,
    /// How ranks on GPUs add up: `auto` (NCCL where it is, else what follows), `nccl` (its own order), `scheduled` (our
    /// algorithms over NCCL's messages), `device` (a fused kernel, where ranks share a process) or `host` (the CPU's
    /// communicator). The last three have the CPU's bits.
    pub exchange: String,
    /// Threads that compute for each rank. The results do not depend on it.
    pub threads: usize,
    /// `single` or `ddp`.
    pub strategy: String,
    /// Seed of the initial weights and of the order of samples.
    pub seed: u64,
    /// Passes over the training set.
    pub epochs: u64,
    /// Stop after so many steps, if that comes first; 0: no limit.
    pub max_steps: u64,
    /// Samples per step on each rank. The last batch of an epoch may be smaller.
    pub batch: usize,
    /// Micro-batches that these are cut into. Gradients are added up, and exchanged once, with the last.
    pub accumulate: usize,
    /// Whether each epoch has a new order of samples.
    pub shuffle: bool,
    /// Drop the samples that do not fill a row of ranks, instead of repeating some.
    pub drop_last: bool,
    /// `digits`, `mnist`, `fashion_mnist`, `cifar10`, `text` or `synthetic`.
    pub data: String,
    /// Where data is read from.
    pub data_dir: String,
    /// Tokens of a sample of text.
    pub positions: usize,
    /// Samples of the synthetic set.
    pub synthetic_samples: usize,
    /// Channels, height and width of a synthetic sample.
    pub synthetic_shape: [usize; 3],
    /// Labels of the synthetic set; of tokens, how many there are.
    pub synthetic_classes: usize,
    /// Lines and columns of black put around each training picture, of which its old size is then cut out at random; 0: none.
    pub crop_padding: usize,
    /// Whether each training picture is mirrored, left to right, with probability one half.
    pub flip: bool,
    /// Threads of each rank that put batches together ahead of their steps; 0: none.
    pub workers: usize,
    /// Batches that each of them is ahead.
    pub prefetch: usize,
    /// A safetensors file whose weights, by PyTorch's names, replace the initial ones; empty: none.
    pub weights: String,
    /// Use only the first so many training samples; 0: all.
    pub train_samples: usize,
    /// Keep the last so many training samples out of training, and score the run on them instead of on the test set: to
    /// choose a configuration by; 0: score on the test set.
    pub validation: usize,
    /// `sgd`, `adam`, `adamw` or `lars`.
    pub optimiser: String,
    /// Learning rate.
    pub lr: f64,
    /// Whether the learning rate is multiplied by the number of ranks.
    pub scale_lr: bool,
    /// `constant`, `step`, `milestones`, `exponential`, `polynomial`, `cosine`, `restarts` or `one_cycle`.
    pub lr_schedule: String,
    /// Steps in which the rate rises, before the schedule begins.
    pub warmup_steps: u64,
    /// The share of the rate that the warm-up starts from.
    pub warmup_from: f64,
    /// Steps between two changes of the step schedule, or in the first period of restarts.
    pub lr_every: u64,
    /// What the rate is multiplied by in step, milestones and exponential; of restarts, each period's length.
    pub lr_factor: f64,
    /// Steps at which the milestones schedule changes the rate.
    pub lr_milestones: Vec<u64>,
    /// Where a cosine ends.
    pub lr_floor: f64,
    /// The polynomial's power.
    pub lr_power: f64,
    /// Momentum of sgd and lars; 0 is plain gradient descent.
    pub momentum: f64,
    /// Weight decay, added to the gradient; of adamw, taken from the weights.
    pub weight_decay: f64,
    /// Nesterov's momentum, of sgd.
    pub nesterov: bool,
    /// How much of adam's mean gradient a step keeps.
    pub beta1: f64,
    /// How much of adam's mean square gradient a step keeps.
    pub beta2: f64,
    /// Added to adam's denominator.
    pub eps: f64,
    /// Lars' trust coefficient: how long a step may be, beside the weights.
    pub trust: f64,
    /// Bound on the norm of all gradients; 0: none.
    pub clip_norm: f64,
    /// What the loss is multiplied by at first, against underflow of gradients; 0: not at all. A loss that is not finite
    /// ends the run all the same; under `amp` f16 with a scale, ten of them in a row.
    pub loss_scale: f64,
    /// What the loss scale is multiplied by after `scale_interval` steps without overflow.
    pub scale_growth: f64,
    /// What it is multiplied by after an overflow, whose step every rank skips. Running statistics take of such a step what
    /// is finite.
    pub scale_backoff: f64,
    /// Steps without overflow before it grows.
    pub scale_interval: u64,
    /// The least that it may be.
    pub scale_floor: f64,
    /// KiB of gradients that close ddp's first bucket; 0: every parameter has its own.
    pub first_bucket_kib: u64,
    /// KiB of gradients that close every further bucket.
    pub bucket_kib: u64,
    /// What becomes of a bucket on its way: `none`, `fp16`, `bf16`, `powersgd`, `topk`, `int8` or `local_sgd`.
    pub hook: String,
    /// Rank of powersgd's matrices.
    pub powersgd_rank: usize,
    /// The share of a bucket's elements that topk sends.
    pub topk_share: f64,
    /// Steps between two averages of the weights under local_sgd.
    pub local_steps: u64,
    /// Prefixes of parameters' names, each of which has ddp buckets of its own. Sizes of buckets, the hook and the one order of
    /// sending are the same for all.
    pub groups: Vec<String>,
    /// Whether ddp looks in every step for parameters that had no gradient.
    pub find_unused: bool,
    /// Whether the parameters without a gradient are those of the first step.
    pub static_graph: bool,
    /// Whether rank 0's running statistics go to all ranks before every step, not only before evaluation.
    pub broadcast_buffers: bool,
    /// Neither repeat nor drop samples: ranks that have none left take part without any.
    pub uneven: bool,
    /// Where rank 0 keeps checkpoints. A run that writes some and does not resume refuses a folder that has any.
    pub checkpoint_dir: String,
    /// Steps from one checkpoint to the next, and the last step has one in any case; 0: none at all.
    pub checkpoint_every: u64,
    /// How many of the newest are kept.
    pub checkpoint_keep: usize,
    /// Go on from the newest checkpoint, where there is one. `epochs` and `max_steps` may be others than its, unless the
    /// learning rates depend on them: those of polynomial, cosine and one_cycle do.
    pub resume: bool,
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
        let Some(place) = table.get_mut(key) else {
            return Err(unknown("key", key, Config::FIELD_NAMES.iter().copied()));
        };
        let read = toml::from_str::<toml::Table>(&format!("value = {value}"));
        let read = read.ok().and_then(|mut read| read.remove("value"));
        *place = read.unwrap_or_else(|| toml::Value::String(value.into()));
        *self = table.try_into().map_err(|error: toml::de::Error| wrong(error.message().into()))?;
        Ok(())
    }

    /// A file that says what is so without one: every key with its meaning and its default.
    pub fn documented() -> String {
        let defaults = toml::Table::try_from(Config::default()).unwrap_or_default();
        let keys = Config::FIELD_NAMES.iter().zip(Config::FIELD_DOCS);
        let told = keys.filter_map(|(key, meaning)| {
            let meaning = meaning.lines().map(|line| format!("# {}\n", line.trim())).collect::<String>();
            Some(format!("{meaning}{key} = {}\n", defaults.get(*key)?))
        });
        told.collect::<Vec<_>>().join("\n")
    }

    /// Where ddp's buckets close.
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

    /// What autocast computes in, where there is one.
    pub fn narrow(&self) -> Option<Narrow> {
        match self.amp.as_str() {
            "f16" => Some(Narrow::F16),
            "bf16" => Some(Narrow::Bf16),
            _ => None,
        }
    }

    /// What a run is scored on, in a word.
    pub fn scored_on(&self) -> &'static str {
        if self.validation > 0 { "validation" } else { "test" }
    }

    /// Samples in each of the micro-batches that `samples` of a step are cut into; the last one may have fewer.
    pub fn micro_batch(&self, samples: usize) -> usize {
        samples.div_ceil(self.accumulate.max(1)).max(1)
    }
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
