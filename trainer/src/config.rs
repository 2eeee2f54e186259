//! The configuration of a run, see [`allfold_config`], checked against the tables of names.

mod without_effect;

pub use allfold_config::{
    AutocastType, CheckpointConfig, Config, DataConfig, DdpConfig, ElementType, GpuExchange, LossName,
    LrScheduleConfig, LrScheduleName, LrUnit, ModelConfig, OptimiserConfig, ParallelConfig, PrecisionConfig,
    RankDevice, ScheduleName, ScoreBy, StageSharing, TrainingConfig, are_real_devices,
};
pub use without_effect::without_effect;

use crate::strategies::hooks;
use crate::unknown::unknown;
use crate::{Error, Result, data, models, optim, strategies};

/// Reads a TOML text and checks it; `name` is the file's, for messages.
///
/// ```
/// use allfold_trainer::config::parse;
///
/// let error = parse("[model]\nname = \"cn\"", "run.toml").unwrap_err();
/// assert_eq!(error.to_string(), "run.toml: unknown model `cn`; the nearest is `cnn`");
/// ```
///
/// # Errors
/// What [`Config::read`] and [`check`] refuse.
pub fn parse(text: &str, name: &str) -> Result<Config> {
    let config = Config::read(text, name)?;
    check(&config).map_err(|error| Error::Config(format!("{name}: {error}")))?;
    Ok(config)
}

/// Checks that a configuration makes sense.
///
/// # Errors
/// The first value that makes no sense, and what would be right.
pub fn check(config: &Config) -> Result<()> {
    among("model", &config.model.name, models::ADDED.names())?;
    among("data", &config.data.name, data::ADDED.names())?;
    strategies::check_name(&config.strategy)?;
    among("optimiser", &config.optimiser.name, optim::ADDED.names())?;
    among("hook", &config.ddp.hook, hooks::ADDED.names())?;
    config.check_values()?;
    check_own_parts(config)?;
    check_together(config)
}

/// Refuses parts of the program's own on GPUs.
fn check_own_parts(config: &Config) -> Result<()> {
    let own = [
        ("optimiser.name", &config.optimiser.name, optim::ADDED.find(&config.optimiser.name).is_some()),
        ("ddp.hook", &config.ddp.hook, hooks::ADDED.find(&config.ddp.hook).is_some()),
    ];
    match own.iter().find(|(.., own)| *own && config.uses_gpus()) {
        Some((key, name, _)) => Err(Error::Config(format!(
            "`{key}` is `{name}`, which is the program's own and computes on the CPU; set device = \"cpu\""
        ))),
        None => Ok(()),
    }
}

/// Refuses values of one table that have no effect together with those of another table, or contradict them.
fn check_together(config: &Config) -> Result<()> {
    let Config { model, data, ddp, .. } = config;
    let single = config.strategy == "single";
    let (texts, bert) = (model.predicts_tokens(), model.name == "bert");
    let published = data::DATA.iter().any(|(known, _)| *known == data.name);
    let wrong = [
        (single && ddp.hook != "none", "`ddp.hook` is for ddp's buckets; strategy `single` has none"),
        (single && !ddp.groups.is_empty(), "`ddp.groups` are ddp's buckets; strategy `single` has none"),
        (
            single && ddp.broadcast_buffers,
            "`ddp.broadcast_buffers` is for ddp; strategy `single` has one rank",
        ),
        (
            (data.flip || data.crop_padding > 0) && (data.name == "text" || texts || bert),
            "`data.crop_padding` and `data.flip` change pictures, and the data is text: leave them out",
        ),
        (
            bert && data.name != "arrays" && published,
            "model `bert` classifies arrays of tokens; set data.name = \"arrays\"",
        ),
    ];
    match wrong.iter().find(|(wrong, _)| *wrong) {
        Some((_, why)) => Err(Error::Config((*why).into())),
        None => Ok(()),
    }
}

fn among(what: &str, name: &str, names: impl Iterator<Item = &'static str> + Clone) -> Result<()> {
    match names.clone().any(|known| known == name) {
        true => Ok(()),
        false => Err(unknown(what, name, names)),
    }
}
