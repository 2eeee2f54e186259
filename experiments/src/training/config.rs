//! The configuration of a training run, from its file.

use crate::cli::failure::{Failure, Outcome};
use allfold_trainer::Config;
use std::path::Path;

/// Reads a configuration file.
///
/// # Errors
/// The file cannot be read, or says something that makes no sense; with line and column.
pub fn read(path: &Path) -> Outcome<Config> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "{name}: {error}; name a TOML file such as experiments/configs/digits-cnn.toml"
        ))
    })?;
    Config::parse(&text, &name).map_err(Failure::usage)
}
