//! The configuration of a training run, from its file.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_sim::read_text_at_most;
use allfold_trainer::Config;
use std::path::Path;

/// The greatest length of a configuration in bytes.
const LONGEST: u64 = 1 << 20;

/// Reads a configuration file.
///
/// # Errors
/// The file cannot be read, or has an unknown key or a wrong value; the error gives line and column.
pub fn read(path: &Path) -> CommandResult<Config> {
    let name = path.display().to_string();
    let text = read_text_at_most(path, LONGEST, "a configuration").map_err(|error| {
        CommandError::usage(format!(
            "{name}: {error}; name a TOML file: experiments/configs is part of Allfold's source tree, and `allfold train --keys` \
             prints every key with its default, for a file of your own"
        ))
    })?;
    allfold_trainer::config::parse(&text, &name).map_err(CommandError::usage)
}

/// Sets the value of a key of the configuration; `pair` is KEY=VALUE.
///
/// # Errors
/// `pair` is not of the form KEY=VALUE, its key is unknown, or its value has a wrong type.
pub fn replace(config: &mut Config, pair: &str) -> CommandResult {
    let Some((key, value)) = pair.split_once('=') else {
        return Err(CommandError::usage(format!("--set {pair}: write KEY=VALUE, such as optimiser.lr=0.05")));
    };
    config
        .set(key.trim(), value.trim())
        .map_err(|error| CommandError::usage(format!("--set {pair}: {error}")))
}
