//! The file of every key with its meaning and default, which `allfold train --keys` prints.

use super::{Config, Parallel};
use documented::DocumentedFields;

impl Config {
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
}

/// A key of a documented file: its meaning as comments, and its default.
fn documented(key: &str, meaning: &str, default: &toml::Value) -> Option<String> {
    let meaning = meaning.lines().map(|line| format!("# {}\n", line.trim())).collect::<String>();
    Some(format!("{meaning}{key} = {default}\n"))
}
