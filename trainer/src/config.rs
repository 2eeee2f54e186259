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

use crate::buckets::Caps;
use crate::data::DATA;
use crate::models::MODELS;
use crate::optim::OPTIMISERS;
use crate::scaler::{GradScaler, Rules};
use crate::schedule::SCHEDULES;
use crate::strategies::STRATEGIES;
use crate::strategies::hooks::HOOKS;
use crate::{Error, Result};
use allfold_kernels::nn::Narrow;
use serde::{Deserialize, Serialize};

/// A training run. With its seed it determines every loss and weight, whatever it runs on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// What the loss is multiplied by at first, against underflow of gradients; 0: not at all.
    pub loss_scale: f64,
    /// What the loss scale is multiplied by after `scale_interval` steps without overflow.
    pub scale_growth: f64,
    /// What it is multiplied by after an overflow, whose step every rank skips.
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
    /// Prefixes of parameters' names, each of which has ddp buckets of its own.
    pub groups: Vec<String>,
    /// Whether ddp looks in every step for parameters that had no gradient.
    pub find_unused: bool,
    /// Whether the parameters without a gradient are those of the first step.
    pub static_graph: bool,
    /// Whether rank 0's running statistics go to all ranks before every step, not only before evaluation.
    pub broadcast_buffers: bool,
    /// Neither repeat nor drop samples: ranks that have none left take part without any.
    pub uneven: bool,
    /// Where rank 0 keeps checkpoints.
    pub checkpoint_dir: String,
    /// Steps from one checkpoint to the next; 0: none. The last step has one in any case.
    pub checkpoint_every: u64,
    /// How many of the newest are kept.
    pub checkpoint_keep: usize,
    /// Go on from the newest checkpoint, where there is one.
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

/// The largest batch and the widest layer: with both, the operations of a layer still fit in 64 bits.
const LARGEST: usize = 65_536;

impl Default for Config {
    /// The CNN on the digits.
    fn default() -> Config {
        Config {
            model: "cnn".into(),
            hidden: vec![128],
            channels: vec![32, 64],
            batch_norm: true,
            imagenet_stem: false,
            layers: 4,
            width: 128,
            heads: 4,
            tied: true,
            dropout: 0.0,
            attention_dropout: 0.0,
            frozen: Vec::new(),
            loss: "cross_entropy".into(),
            sync_batch_norm: false,
            dtype: "f32".into(),
            amp: "none".into(),
            device: "cpu".into(),
            channels_last: false,
            exchange: "auto".into(),
            threads: 1,
            strategy: "ddp".into(),
            seed: 0,
            epochs: 4,
            max_steps: 0,
            batch: 16,
            accumulate: 1,
            shuffle: true,
            drop_last: false,
            data: "digits".into(),
            data_dir: "data".into(),
            positions: 128,
            synthetic_samples: 512,
            synthetic_shape: [3, 32, 32],
            synthetic_classes: 10,
            workers: 0,
            prefetch: 2,
            weights: String::new(),
            train_samples: 0,
            validation: 0,
            optimiser: "sgd".into(),
            lr: 0.02,
            scale_lr: false,
            lr_schedule: "constant".into(),
            warmup_steps: 0,
            warmup_from: 0.1,
            lr_every: 100,
            lr_factor: 0.5,
            lr_milestones: Vec::new(),
            lr_floor: 0.0,
            lr_power: 1.0,
            momentum: 0.9,
            weight_decay: 1e-4,
            nesterov: false,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            trust: 0.001,
            clip_norm: 0.0,
            loss_scale: 0.0,
            scale_growth: Rules::default().growth,
            scale_backoff: Rules::default().backoff,
            scale_interval: Rules::default().interval,
            scale_floor: Rules::default().floor,
            first_bucket_kib: 1024,
            bucket_kib: 25 * 1024,
            hook: "none".into(),
            powersgd_rank: 2,
            topk_share: 0.01,
            local_steps: 4,
            groups: Vec::new(),
            find_unused: false,
            static_graph: false,
            broadcast_buffers: false,
            uneven: false,
            checkpoint_dir: "checkpoints".into(),
            checkpoint_every: 0,
            checkpoint_keep: 3,
            resume: false,
        }
    }
}

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

    /// Where ddp's buckets close.
    pub fn caps(&self) -> Caps {
        Caps { first: self.first_bucket_kib.saturating_mul(1024), rest: self.bucket_kib.saturating_mul(1024) }
    }

    /// The loss scaler, where there is one.
    pub fn scaler(&self) -> Option<GradScaler> {
        let rules = Rules {
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

    /// Whether a loss scale moves within what f32 holds, and the right way.
    fn check_scale(&self) -> Result<()> {
        let least = f64::from(f32::MIN_POSITIVE);
        let limits = [
            ("scale_growth", self.scale_growth, 1.0, f64::from(f32::MAX)),
            ("scale_backoff", self.scale_backoff, least, 1.0),
            ("scale_floor", self.scale_floor, least, f64::from(f32::MAX)),
            ("loss_scale", self.loss_scale, 0.0, f64::from(f32::MAX)),
        ];
        match limits.iter().find(|(_, value, low, high)| !(*low..=*high).contains(value)) {
            Some((key, value, low, high)) => {
                Err(Error::Config(format!("`{key}` is {value}; it must be {low:e} to {high:e}")))
            }
            None => Ok(()),
        }
    }

    /// Whether the values make sense.
    ///
    /// # Errors
    /// The first one that does not, and what would.
    pub fn check(&self) -> Result<()> {
        let known = |what, name: &str, names: &[(&'static str, &str)]| {
            let mut names = names.iter().map(|(name, _)| *name);
            if names.clone().any(|known| known == name) {
                Ok(())
            } else {
                Err(unknown(what, name, &mut names))
            }
        };
        known("model", &self.model, MODELS)?;
        known("data", &self.data, DATA)?;
        known("strategy", &self.strategy, STRATEGIES)?;
        known("optimiser", &self.optimiser, OPTIMISERS)?;
        known("lr_schedule", &self.lr_schedule, SCHEDULES)?;
        known("dtype", &self.dtype, &[("f32", ""), ("f64", "")])?;
        known("device", &self.device, DEVICES)?;
        known("exchange", &self.exchange, EXCHANGES)?;
        known("hook", &self.hook, HOOKS)?;
        if self.workers > 64 {
            let workers = self.workers;
            return Err(Error::Config(format!("`workers` is {workers}; it must be 0 to 64")));
        }
        if !(self.topk_share > 0.0 && self.topk_share <= 1.0) {
            let share = self.topk_share;
            return Err(Error::Config(format!(
                "`topk_share` is {share}; it must be more than 0 and at most 1"
            )));
        }
        known("amp", &self.amp, &[("none", ""), ("f16", ""), ("bf16", "")])?;
        known("loss", &self.loss, &[("cross_entropy", ""), ("mse", "")])?;
        if self.amp != "none" && self.dtype != "f32" {
            let (amp, dtype) = (&self.amp, &self.dtype);
            return Err(Error::Config(format!(
                "`amp` is {amp} and `dtype` {dtype}; autocast needs dtype f32"
            )));
        }
        if self.epochs == 0 {
            return Err(Error::Config("`epochs` is 0; it must be 1 or more".into()));
        }
        if self.lr_schedule == "restarts" && self.lr_factor < 1.0 {
            let factor = self.lr_factor;
            return Err(Error::Config(format!(
                "`lr_factor` is {factor}; restarts need 1 or more, as a period cannot be shorter than the last"
            )));
        }
        let counts = [
            ("lr_every", self.lr_every),
            ("scale_interval", self.scale_interval),
            ("local_steps", self.local_steps),
        ];
        if let Some((key, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(Error::Config(format!("`{key}` is 0; it must be 1 or more")));
        }
        self.check_scale()?;
        let sizes = [
            ("batch", std::slice::from_ref(&self.batch)),
            ("accumulate", std::slice::from_ref(&self.accumulate)),
            ("positions", std::slice::from_ref(&self.positions)),
            ("synthetic_shape", &self.synthetic_shape),
            ("synthetic_classes", std::slice::from_ref(&self.synthetic_classes)),
            ("prefetch", std::slice::from_ref(&self.prefetch)),
            ("powersgd_rank", std::slice::from_ref(&self.powersgd_rank)),
            ("layers", std::slice::from_ref(&self.layers)),
            ("width", std::slice::from_ref(&self.width)),
            ("heads", std::slice::from_ref(&self.heads)),
            ("threads", std::slice::from_ref(&self.threads)),
            ("hidden", &self.hidden),
            ("channels", &self.channels),
        ];
        for (key, sizes) in sizes {
            if let Some(size) = sizes.iter().find(|size| !(1..=LARGEST).contains(*size)) {
                return Err(Error::Config(format!("`{key}` has {size}; it must be 1 to {LARGEST}")));
            }
        }
        if let Some((key, value)) = [
            ("beta1", self.beta1),
            ("beta2", self.beta2),
            ("dropout", self.dropout),
            ("attention_dropout", self.attention_dropout),
        ]
        .iter()
        .find(|(_, beta)| !(0.0..1.0).contains(beta))
        {
            return Err(Error::Config(format!("`{key}` is {value}; it must be at least 0 and less than 1")));
        }
        let rates = [
            ("lr", self.lr),
            ("momentum", self.momentum),
            ("weight_decay", self.weight_decay),
            ("eps", self.eps),
            ("trust", self.trust),
            ("warmup_from", self.warmup_from),
            ("lr_factor", self.lr_factor),
            ("lr_floor", self.lr_floor),
            ("lr_power", self.lr_power),
            ("clip_norm", self.clip_norm),
            ("loss_scale", self.loss_scale),
        ];
        match rates.iter().find(|(_, value)| !value.is_finite() || *value < 0.0) {
            Some((key, value)) => Err(Error::Config(format!("`{key}` is {value}; it must be 0 or more"))),
            None => Ok(()),
        }
    }
}

/// The error for a name that is none of `names`: it suggests the nearest, or lists them all.
pub(crate) fn unknown<'a>(what: &str, got: &str, names: impl Iterator<Item = &'a str>) -> Error {
    let names: Vec<&str> = names.collect();
    Error::Config(format!("unknown {what} `{got}`; {}", suggestion(got, &names)))
}

/// `the nearest is ...` where a name is at all like `got`, else `there are ...`.
fn suggestion(got: &str, names: &[&str]) -> String {
    match allfold_sim::suggest::nearest(got, names.iter().copied()) {
        Some(nearest) => format!("the nearest is `{nearest}`"),
        None => format!("there are {}", names.join(", ")),
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
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Config::parse(text, "c.toml").unwrap_err().to_string()
    }

    #[test]
    fn an_empty_file_is_the_default_and_every_key_survives_the_round_trip() {
        assert_eq!(Config::parse("", "c.toml").unwrap(), Config::default());
        let text = toml::to_string(&Config { epochs: 9, ..Config::default() }).unwrap();
        assert_eq!(Config::parse(&text, "c.toml").unwrap().epochs, 9);
    }

    #[test]
    fn mistakes_are_named_in_one_line_with_what_would_be_right() {
        assert_eq!(
            error("seed = 1\nbatchsize = 3"),
            "c.toml:2:1: unknown key `batchsize`; the nearest is `batch`"
        );
        assert_eq!(error("model = \"cn\""), "c.toml: unknown model `cn`; the nearest is `cnn`");
        assert_eq!(error("strategy = \"dpp\""), "c.toml: unknown strategy `dpp`; the nearest is `ddp`");
        assert_eq!(error("batch = 0"), "c.toml: `batch` has 0; it must be 1 to 65536");
        assert_eq!(error("hidden = [8, 70000]"), "c.toml: `hidden` has 70000; it must be 1 to 65536");
        assert_eq!(Config::parse("lr = 1", "c.toml").unwrap().lr, 1.0);
        assert_eq!(error("lr = -1.0"), "c.toml: `lr` is -1; it must be 0 or more");
        assert_eq!(
            error("lr_schedule = \"cosin\""),
            "c.toml: unknown lr_schedule `cosin`; the nearest is `cosine`"
        );
        assert_eq!(
            error("scale_backoff = 2.0"),
            "c.toml: `scale_backoff` is 2; it must be 1.1754943508222875e-38 to 1e0"
        );
        assert_eq!(error("clip_norm = nan"), "c.toml: `clip_norm` is NaN; it must be 0 or more");
        assert_eq!(error("beta2 = 1.0"), "c.toml: `beta2` is 1; it must be at least 0 and less than 1");
        assert_eq!(error("optimiser = \"adan\""), "c.toml: unknown optimiser `adan`; the nearest is `adam`");
        assert!(
            error("epochs = \"two\"").starts_with("c.toml:1:10: invalid type: string \"two\", expected u64")
        );
        assert!(error("epochs = ").starts_with("c.toml:1:10: "), "{}", error("epochs = "));
        assert!(!error("epochs = [\n1,\n").contains('\n'));
    }
}
