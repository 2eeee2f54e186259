//! Checks that the values of a configuration make sense, one by one and together.

use super::{Config, EXCHANGES};
use crate::lr_schedule::SCHEDULES;
use crate::scores::SCORES;
use crate::strategies::hooks;
use crate::unknown::unknown;
use crate::{Error, Result, data, models, optim, strategies};

/// The largest batch and the widest layer: with both, the operation count of a layer still fits in 64 bits.
const LARGEST: usize = 65_536;
/// The largest vocabulary.
const MOST_TOKENS: usize = 1 << 20;

impl Config {
    /// Checks that the loss scale stays in the range of f32, grows by `scale_growth` and shrinks by `scale_backoff`.
    fn check_scale(&self) -> Result<()> {
        let least = f64::from(f32::MIN_POSITIVE);
        let limits = [
            ("scale_growth", self.scale_growth, 1.0, f64::from(f32::MAX)),
            ("scale_backoff", self.scale_backoff, least, 1.0),
            ("scale_floor", self.scale_floor, least, f64::from(f32::MAX)),
            ("loss_scale", self.loss_scale, 0.0, f64::from(f32::MAX)),
        ];
        let Config { loss_scale, scale_floor, .. } = self;
        match limits.iter().find(|(_, value, low, high)| !(*low..=*high).contains(value)) {
            Some((key, value, low, high)) => {
                Err(Error::Config(format!("`{key}` is {value}; it must be {low:e} to {high:e}")))
            }
            None if *loss_scale > 0.0 && scale_floor > loss_scale => Err(Error::Config(format!(
                "`scale_floor` is {scale_floor}, which is above the first scale, `loss_scale` = {loss_scale}"
            ))),
            None => Ok(()),
        }
    }

    /// Refuses some values that would have no effect beside the others, and values that contradict each other.
    fn check_together(&self) -> Result<()> {
        let (single, gpt) = (self.strategy == "single", self.model == "gpt");
        let milestones = self.lr_schedule == "milestones";
        let (vgg, bert) = (self.model.starts_with("vgg"), self.model == "bert");
        let drops = gpt || bert || vgg && self.imagenet_stem;
        let wrong = [
            (single && self.hook != "none", "`hook` is for ddp's buckets; strategy `single` has none"),
            (single && !self.groups.is_empty(), "`groups` are ddp's buckets; strategy `single` has none"),
            (
                single && self.broadcast_buffers,
                "`broadcast_buffers` is for ddp; strategy `single` has one rank",
            ),
            (
                self.uneven && self.drop_last_batch,
                "`uneven` drops no samples and `drop_last_batch` does: set one of them",
            ),
            (
                self.uneven && self.drop_last,
                "`uneven` drops no samples and `drop_last` does: set one of them",
            ),
            (
                self.find_unused && self.static_graph,
                "`static_graph` and `find_unused` mean the same: set one of them",
            ),
            (self.nesterov && self.optimiser != "sgd", "`nesterov` is for optimiser `sgd`"),
            (self.nesterov && self.momentum == 0.0, "`nesterov` needs a `momentum` above 0"),
            (!milestones && !self.lr_milestones.is_empty(), "`lr_milestones` need lr_schedule `milestones`"),
            (milestones && self.lr_milestones.is_empty(), "lr_schedule `milestones` needs `lr_milestones`"),
            (self.min_delta > 0.0 && self.patience == 0, "`min_delta` is for `patience`: set both of them"),
            (
                self.dropout > 0.0 && !drops,
                "`dropout` is for models `gpt` and `bert`, and for a vgg with `imagenet_stem`; the others drop nothing",
            ),
            (
                self.attention_dropout > 0.0 && !gpt && !bert,
                "`attention_dropout` is for models `gpt` and `bert`; the others have no attention",
            ),
            (
                bert && self.data != "arrays" && data::DATA.iter().any(|(known, _)| *known == self.data),
                "model `bert` classifies arrays of tokens; set data = \"arrays\"",
            ),
            (self.experts > 0 && !gpt, "`experts` are for model `gpt`; the others have none"),
            (self.experts > 0 && self.uses_gpus(), "`experts` have no GPU kernels; set device = \"cpu\""),
            (
                self.frozen.is_empty() && !self.trained.is_empty(),
                "`trained` excepts layers from `frozen`, which names none; to train these alone, set frozen = [\"*\"]",
            ),
            (
                !self.weights_strict && self.weights.is_empty(),
                "`weights_strict` is for the file that `weights` names; without one, leave it out",
            ),
            (
                self.imagenet_stem && !vgg && !self.model.starts_with("resnet"),
                "`imagenet_stem` is for resnets and vggs; another model has one form",
            ),
        ];
        match wrong.iter().find(|(wrong, _)| *wrong) {
            Some((_, why)) => Err(Error::Config((*why).into())),
            None => Ok(()),
        }
    }

    /// Checks that each value that must be one of several names is one of them.
    fn check_names(&self) -> Result<()> {
        among("model", &self.model, models::ADDED.names())?;
        among("data", &self.data, data::ADDED.names())?;
        strategies::check_name(&self.strategy)?;
        among("optimiser", &self.optimiser, optim::ADDED.names())?;
        among("hook", &self.hook, hooks::ADDED.names())?;
        let on_gpus = [
            ("optimiser", &self.optimiser, optim::ADDED.find(&self.optimiser).is_some()),
            ("hook", &self.hook, hooks::ADDED.find(&self.hook).is_some()),
            ("strategy", &self.strategy, strategies::ADDED.find(&self.strategy).is_some()),
        ];
        if let Some((key, name, _)) = on_gpus.iter().find(|(.., own)| *own && self.uses_gpus()) {
            return Err(Error::Config(format!(
                "`{key}` is `{name}`, which is the program's own and computes on the CPU; set device = \"cpu\""
            )));
        }
        known("lr_schedule", &self.lr_schedule, SCHEDULES)?;
        known("lr_unit", &self.lr_unit, &[("step", ""), ("epoch", "")])?;
        known("score", &self.score, SCORES)?;
        known("dtype", &self.dtype, &[("f32", ""), ("f64", "")])?;
        self.devices()?;
        known("exchange", &self.exchange, EXCHANGES)
    }

    /// Checks that the data allow the augmentations, that there are at most 64 workers, and that top-k's share is in (0, 1].
    fn check_data(&self) -> Result<()> {
        if (self.flip || self.crop_padding > 0)
            && (self.data == "text" || ["gpt", "bert"].contains(&self.model.as_str()))
        {
            return Err(Error::Config(
                "`crop_padding` and `flip` change pictures, and the data is text: leave them out".into(),
            ));
        }
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
        Ok(())
    }

    /// Checks the names of autocast's type and of the loss, and that autocast has element type f32.
    fn check_precision(&self) -> Result<()> {
        known("amp", &self.amp, &[("none", ""), ("f16", ""), ("bf16", "")])?;
        known("loss", &self.loss, &[("cross_entropy", ""), ("mse", "")])?;
        if self.amp != "none" && self.dtype != "f32" {
            let (amp, dtype) = (&self.amp, &self.dtype);
            return Err(Error::Config(format!(
                "`amp` is {amp} and `dtype` {dtype}; autocast needs dtype f32"
            )));
        }
        Ok(())
    }

    /// Checks that counts and intervals are at least 1, that the periods of `restarts` do not become shorter, and that `plateau` lowers
    /// the rate.
    fn check_counts(&self) -> Result<()> {
        if self.epochs == 0 {
            return Err(Error::Config("`epochs` is 0; it must be 1 or more".into()));
        }
        let factor = self.lr_factor;
        if self.lr_schedule == "restarts" && factor < 1.0 {
            return Err(Error::Config(format!(
                "`lr_factor` is {factor}; `restarts` needs 1 or more, so that no period is shorter than the one before"
            )));
        }
        if self.lr_schedule == "plateau" && factor >= 1.0 {
            return Err(Error::Config(format!(
                "`lr_factor` is {factor}; `plateau` needs less than 1, so that the rate is lowered"
            )));
        }
        let counts = [
            ("lr_every", self.lr_every),
            ("scale_interval", self.scale_interval),
            ("local_steps", self.local_steps),
            ("checkpoint_keep", self.checkpoint_keep as u64),
        ];
        if let Some((key, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(Error::Config(format!("`{key}` is 0; it must be 1 or more")));
        }
        Ok(())
    }

    /// Checks that sizes are small enough for the operation count of a layer to fit in 64 bits.
    fn check_sizes(&self) -> Result<()> {
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
            ("experts_per_token", std::slice::from_ref(&self.experts_per_token)),
            ("threads", std::slice::from_ref(&self.threads)),
            ("hidden", &self.hidden),
            ("channels", &self.channels),
        ];
        for (key, sizes) in sizes {
            if let Some(size) = sizes.iter().find(|size| !(1..=LARGEST).contains(*size)) {
                return Err(Error::Config(format!("`{key}` has {size}; it must be 1 to {LARGEST}")));
            }
        }
        if !(1..=MOST_TOKENS).contains(&self.vocabulary) {
            let vocabulary = self.vocabulary;
            return Err(Error::Config(format!(
                "`vocabulary` is {vocabulary}; it must be 1 to {MOST_TOKENS}"
            )));
        }
        Ok(())
    }

    /// Checks that the configuration makes sense.
    ///
    /// # Errors
    /// The first value that does not, and what would be right.
    pub fn check(&self) -> Result<()> {
        self.check_names()?;
        self.check_data()?;
        self.check_pictures()?;
        self.check_precision()?;
        self.check_counts()?;
        self.check_scale()?;
        self.check_together()?;
        self.check_sizes()?;
        self.check_rates()
    }

    /// Checks that shares are at least 0 and less than 1, and that rates are finite and not negative.
    fn check_rates(&self) -> Result<()> {
        if let Some((key, value)) = [
            ("momentum", self.momentum),
            ("beta1", self.beta1),
            ("beta2", self.beta2),
            ("dropout", self.dropout),
            ("attention_dropout", self.attention_dropout),
            ("lr_threshold", self.lr_threshold),
        ]
        .iter()
        .find(|(_, beta)| !(0.0..1.0).contains(beta))
        {
            return Err(Error::Config(format!("`{key}` is {value}; it must be at least 0 and less than 1")));
        }
        let rates = [
            ("lr", self.lr),
            ("weight_decay", self.weight_decay),
            ("eps", self.eps),
            ("trust", self.trust),
            ("warmup_from", self.warmup_from),
            ("lr_factor", self.lr_factor),
            ("lr_floor", self.lr_floor),
            ("lr_power", self.lr_power),
            ("min_delta", self.min_delta),
            ("clip_norm", self.clip_norm),
            ("capacity_factor", self.capacity_factor),
            ("balance_loss", self.balance_loss),
            ("loss_scale", self.loss_scale),
        ];
        match rates.iter().find(|(_, value)| !value.is_finite() || *value < 0.0) {
            Some((key, value)) => Err(Error::Config(format!("`{key}` is {value}; it must be 0 or more"))),
            None => Ok(()),
        }
    }
}

/// Checks that `name` is one of `names`.
fn known(what: &str, name: &str, names: &[(&'static str, &str)]) -> Result<()> {
    among(what, name, names.iter().map(|(name, _)| *name))
}

fn among(what: &str, name: &str, names: impl Iterator<Item = &'static str> + Clone) -> Result<()> {
    match names.clone().any(|known| known == name) {
        true => Ok(()),
        false => Err(unknown(what, name, names)),
    }
}
