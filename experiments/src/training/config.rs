//! The configuration of a training run, from its file.

use crate::cli::error::{CommandError, CommandResult};
use allfold_trainer::Config;
use std::path::Path;

/// Reads a configuration file.
///
/// # Errors
/// The file cannot be read, or says something that makes no sense; with line and column.
pub fn read(path: &Path) -> CommandResult<Config> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        CommandError::usage(format!(
            "{name}: {error}; name a TOML file such as experiments/configs/digits-cnn.toml"
        ))
    })?;
    Config::parse(&text, &name).map_err(CommandError::usage)
}

/// Replaces a key of the configuration by `pair`, a KEY=VALUE.
///
/// # Errors
/// No such pair, an unknown key, or a value of another type.
pub fn replace(config: &mut Config, pair: &str) -> CommandResult {
    let Some((key, value)) = pair.split_once('=') else {
        return Err(CommandError::usage(format!("--set {pair}: write KEY=VALUE, such as lr=0.05")));
    };
    config
        .set(key.trim(), value.trim())
        .map_err(|error| CommandError::usage(format!("--set {pair}: {error}")))
}
