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
mod devices;
mod key_list;
mod parallel;
mod pictures;

pub use devices::{RankDevice, are_real_devices};
pub use parallel::{Parallel, ScheduleName, StageSharing};

use crate::buckets::Caps;
use crate::scaler::{GradScaler, ScalerOptions};
use crate::unknown::{suggestion, unknown};
use crate::{Error, Result};
use allfold_kernels::nn::Narrow;
use allfold_sim::{expected, located};
use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// A training run. The configuration determines every loss and weight, on any backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `mlp`, `cnn`, `resnet18`, `resnet34`, `resnet50`, `vgg11`, `vgg13`, `vgg16`, `vgg19`, `bert` or `gpt`.
    pub model: String,
    /// Widths of the mlp's hidden layers.
    pub hidden: Vec<usize>,
    /// Output channels of the cnn's convolutions.
    pub channels: Vec<usize>,
    /// Whether the cnn, or a vgg, has batch norms.
    pub batch_norm: bool,
    /// Whether a resnet begins with the stem for large pictures, which reduces height and width fourfold; whether a vgg ends with the
    /// classifier for pictures of 224x224, with two hidden layers of 4,096.
    pub imagenet_stem: bool,
    /// Transformer blocks of the gpt or bert.
    pub layers: usize,
    /// Embedding width of the gpt or bert.
    pub width: usize,
    /// Attention heads of the gpt or bert; the number divides the width.
    pub heads: usize,
    /// Tokens that the bert knows; 30,522 are those of bert-base-uncased.
    pub vocabulary: usize,
    /// Whether the gpt's output layer shares the weight of its token embedding.
    pub tied: bool,
    /// Dropout probability of the gpt or bert, or of a vgg's classifier for pictures of 224x224; 0: no dropout.
    pub dropout: f64,
    /// Dropout probability of the gpt's or bert's attention weights; 0: no dropout.
    pub attention_dropout: f64,
    /// Experts of each of the gpt's blocks, in place of its fully connected layers; 0: no mixture of experts.
    pub experts: usize,
    /// Experts that each token goes to: those with the largest probabilities by the router.
    pub experts_per_token: usize,
    /// Tokens of a sample that an expert takes, as a multiple of the mean per expert; the others are dropped. 0: none is dropped.
    pub capacity_factor: f64,
    /// Weight of the loss that balances the tokens over the experts. Its gradient moves the routers; the loss that is reported is
    /// without it.
    pub balance_loss: f64,
    /// Frozen layers, blocks or parameters, which keep their initial values. `*` matches any characters: `["layer1", "*.bn*"]`.
    pub frozen: Vec<String>,
    /// Layers, blocks or parameters that are trained although `frozen` names them, with `*` as there: `frozen = ["*"]` and
    /// `trained = ["fc"]` train the layer `fc` alone.
    pub trained: Vec<String>,
    /// `cross_entropy`, or `mse` against the one-hot label.
    pub loss: String,
    /// Whether batch norms normalise over the samples of all ranks instead of each rank's own samples.
    pub sync_batch_norm: bool,
    /// The type of parameters, gradients and activations: `f32` or `f64`.
    pub dtype: String,
    /// Autocast's type: `none`, `f16` or `bf16`. Parameters stay f32.
    pub amp: String,
    /// `cpu`; `cuda`: one GPU for each rank, and ranks share GPUs in turn if there are fewer; or a list with a device for each
    /// rank: `["cuda:0", "cpu"]`.
    #[serde(deserialize_with = "devices::one_or_each")]
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
    /// `tensor`, `context` or `expert`.
    pub strategy: String,
    /// Seed of the initial weights and of the order of samples.
    pub seed: u64,
    /// Passes over the training set.
    pub epochs: u64,
    /// The score by which epochs are compared, for `patience`, `checkpoint_best` and plateau: `accuracy` or `loss`, both on the test
    /// set or the samples that `validation` holds out.
    pub score: String,
    /// Whether every epoch also ends with a score on the training set, which takes a forward pass over the set.
    pub score_train: bool,
    /// Epochs in a row without a better score after which the run ends; 0: it never ends early.
    pub patience: u64,
    /// By how much a score must exceed the last better one to count as better, for `patience`: 0.001 is 0.1 % of accuracy.
    pub min_delta: f64,
    /// Largest number of steps; 0: no limit.
    pub max_steps: u64,
    /// Samples per step on each rank. The last batch of an epoch may be smaller, unless `drop_last_batch` drops it.
    pub batch: usize,
    /// Micro-batches that a rank's batch is cut into. Gradients are accumulated, and exchanged once, with the last micro-batch.
    pub accumulate: usize,
    /// Whether each epoch has a new order of samples.
    pub shuffle: bool,
    /// What happens to an epoch's last samples if they do not divide among the ranks: dropped (true), or filled up by repeated
    /// samples (false).
    pub drop_last: bool,
    /// Whether an epoch's last batch is dropped if it has fewer samples than `batch`.
    pub drop_last_batch: bool,
    /// `digits`, `mnist`, `fashion_mnist`, `cifar10`, `pictures`, `arrays`, `text` or `synthetic`.
    pub data: String,
    /// The folder that data is read from. Pictures are in it in a folder for each class; or in folders `train` and `val` of such.
    /// Arrays are in `train_x.npy` and `train_y.npy`, or in `train.safetensors` as `x` and `y`; and the same of `test`.
    pub data_dir: String,
    /// Share of the arrays' samples, or of each class's pictures, that is held out as the test set, drawn from the seed, if there is
    /// no `val` or `test`.
    pub test_share: f64,
    /// Side of a sample of pictures, in pixels.
    pub picture_size: usize,
    /// Pixels that a picture's shorter side is resized to before its centre is taken; at least `picture_size`.
    pub resize: usize,
    /// Whether a random rectangle of each training picture, resized to `picture_size`, is taken instead of the centre.
    pub random_resized_crop: bool,
    /// Least and greatest area of such a rectangle, relative to the picture's.
    pub crop_scale: [f64; 2],
    /// Least and greatest ratio of such a rectangle's width to its height.
    pub crop_ratio: [f64; 2],
    /// Mean of red, green and blue, of colours in 0..1, which is subtracted from pictures; the defaults are ImageNet's.
    pub picture_mean: [f64; 3],
    /// Standard deviation of red, green and blue, which pictures are divided by.
    pub picture_std: [f64; 3],
    /// Tokens of a sample of text; rows of the bert's table of positions, for samples of as many tokens at most.
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
    /// A file with initial weights under PyTorch's names: safetensors, or a state dict that `torch.save` wrote (`.pt`, `.pth`);
    /// empty: random initial weights.
    pub weights: String,
    /// Whether the tensors of `weights` must be exactly the model's, by name and shape. If not, those that fit are taken; the
    /// model's others keep their random initial values.
    pub weights_strict: bool,
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
    /// `constant`, `step`, `milestones`, `exponential`, `polynomial`, `cosine`, `restarts`, `one_cycle` or `plateau`.
    pub lr_schedule: String,
    /// What the schedule counts: `step`, or `epoch`. With `epoch`, the rate changes between epochs only, `lr_every` and
    /// `lr_milestones` are epochs, and epochs count from the start of the run, not from the end of the warm-up.
    pub lr_unit: String,
    /// Warm-up steps, in which the rate rises linearly before the schedule begins.
    pub warmup_steps: u64,
    /// The fraction of the rate that the warm-up starts from.
    pub warmup_from: f64,
    /// Steps (or epochs, by `lr_unit`) between two changes of the step schedule; length of the first period of restarts.
    pub lr_every: u64,
    /// Factor of the rate in step, milestones, exponential and plateau; factor of each next period's length in restarts.
    pub lr_factor: f64,
    /// Steps (or epochs, by `lr_unit`) at which the milestones schedule changes the rate.
    pub lr_milestones: Vec<u64>,
    /// The rate at which a cosine ends; the lowest rate of plateau.
    pub lr_floor: f64,
    /// The polynomial's power.
    pub lr_power: f64,
    /// After more than this many epochs without a better score, plateau lowers the rate.
    pub lr_patience: u64,
    /// The share of the best score by which a better score must exceed it, for plateau.
    pub lr_threshold: f64,
    /// Epochs after a lower rate in which plateau does not count.
    pub lr_cooldown: u64,
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
    /// Whether ddp allows parameters that the loss does not depend on. A network is static, so they are known and nothing is
    /// searched for.
    pub find_unused: bool,
    /// The same as `find_unused`, by another name of PyTorch's. Set one of the two.
    pub static_graph: bool,
    /// Whether rank 0's running statistics are broadcast before every step, not only before evaluation.
    pub broadcast_buffers: bool,
    /// Whether each sample is used exactly once: ranks that run out take part in the last steps with empty batches.
    pub uneven: bool,
    /// The folder of checkpoints, written by rank 0. A run that writes checkpoints and does not resume refuses a folder that
    /// contains some.
    pub checkpoint_dir: String,
    /// Steps between two checkpoints; 0: none by steps. The last step has one too.
    pub checkpoint_every: u64,
    /// Epochs between two checkpoints, which are written after the epoch's evaluation; 0: none by epochs. The last step has one too.
    pub checkpoint_every_epochs: u64,
    /// How many of the newest checkpoints are kept.
    pub checkpoint_keep: usize,
    /// Whether each rank writes the part that it holds, into a folder `step-N.sharded`, instead of rank 0 everything into a file. All
    /// ranks then need the same `checkpoint_dir`. `best.safetensors` is a file all the same.
    pub checkpoint_sharded: bool,
    /// Whether the checkpoint of the epoch with the best score is kept beside the newest ones, as `best.safetensors`. An epoch that
    /// `max_steps` cuts short does not count.
    pub checkpoint_best: bool,
    /// Whether the run continues from the newest checkpoint, if there is one. `patience` and `min_delta` may differ from the
    /// checkpoint's; so may `epochs` and `max_steps`, unless the learning rates depend on them (polynomial, cosine, one_cycle).
    pub resume: bool,
    /// How the strategy divides the work.
    pub parallel: Parallel,
}

/// The names by which a configuration asks for a device.
pub const DEVICES: &[(&str, &str)] = &[("cpu", "this machine's processors"), ("cuda", "NVIDIA GPUs")];

/// The names by which a configuration asks for a way to sum gradients over GPUs.
pub const EXCHANGES: &[(&str, &str)] = &[
    ("auto", "the first of nccl, device and host that is possible"),
    ("nccl", "NCCL's collectives"),
    ("scheduled", "Allfold's algorithms over NCCL's messages"),
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
            toml::from_str(text).map_err(|error| Error::Config(mistake(&error, text, name)))?;
        config.check().map_err(|error| Error::Config(format!("{name}: {error}")))?;
        Ok(config)
    }

    /// Replaces the value of one key, written as in a file; a word needs no quotes.
    ///
    /// # Errors
    /// An unknown key, with the nearest one, or a value of another type. Only [`Config::check`] refuses values that make no sense.
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
        *self = table.try_into().map_err(|error: toml::de::Error| wrong(expected(error.message())))?;
        Ok(())
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

    /// Whether the run writes checkpoints at certain steps or epochs, and at its last step.
    pub fn checkpoints_by_time(&self) -> bool {
        self.checkpoint_every > 0 || self.checkpoint_every_epochs > 0
    }

    /// Whether the run writes checkpoints at all.
    pub fn writes_checkpoints(&self) -> bool {
        self.checkpoints_by_time() || self.checkpoint_best
    }

    /// Whether anything depends on which epoch has a better score.
    pub fn compares_scores(&self) -> bool {
        self.patience > 0 || self.checkpoint_best || self.lr_schedule == "plateau"
    }

    /// The configuration of a run that writes and resumes no checkpoints and has a fixed number of steps: for measurements.
    pub fn fixed_length(&mut self) {
        (self.checkpoint_every, self.checkpoint_every_epochs, self.checkpoint_best) = (0, 0, false);
        (self.resume, self.patience, self.min_delta, self.score_train) = (false, 0, 0.0, false);
    }

    /// Samples in each of the micro-batches that `samples` of a step are cut into; the last one may have fewer.
    pub fn micro_batch(&self, samples: usize) -> usize {
        samples.div_ceil(self.accumulate.max(1)).max(1)
    }
}

/// `file:line:column: what is wrong and what would be right`, in one line.
fn mistake(error: &toml::de::Error, text: &str, name: &str) -> String {
    let message = expected(error.message());
    let mut quoted = message.split('`').skip(1).step_by(2);
    let what = match (message.starts_with("unknown field"), quoted.next()) {
        (true, Some(key)) if Parallel::FIELD_NAMES.contains(&key) => {
            format!("unknown key `{key}`; it belongs to the table [parallel]")
        }
        (true, Some(key)) => {
            format!("unknown key `{key}`; {}", suggestion(key, &quoted.collect::<Vec<_>>()))
        }
        _ => message,
    };
    located(name, text, error.span().map_or(0, |span| span.start), &what)
}
