//! A configuration as text: the file that `allfold train --keys` prints, and a line for each key.

use crate::Config;
use crate::keys::TABLES;
use crate::limits::limit;
use documented::DocumentedFields;

impl Config {
    /// A configuration file with every key, its meaning and its default.
    pub fn documented() -> String {
        let defaults = toml::Table::try_from(Config::default()).unwrap_or_default();
        let mut text = documented("", Config::FIELD_NAMES, Config::FIELD_DOCS, &defaults);
        for (name, keys, meanings) in TABLES {
            let about = Config::FIELD_NAMES.iter().position(|key| *key == name);
            let about = about.and_then(|at| Config::FIELD_DOCS.get(at)).map_or("", |about| about);
            if let Some(of) = defaults.get(name).and_then(toml::Value::as_table) {
                text += &format!(
                    "\n{}[{name}]\n{}",
                    comment(about),
                    documented(&format!("{name}."), keys, meanings, of)
                );
            }
        }
        text
    }

    /// Every key with its value, as `optimiser.lr = 0.1`.
    ///
    /// # Errors
    /// A number that TOML cannot hold.
    pub fn lines(&self) -> Result<Vec<String>, toml::ser::Error> {
        let all = toml::Table::try_from(self)?;
        let of = |(name, value): (&String, &toml::Value)| match value {
            toml::Value::Table(inner) => {
                inner.iter().map(|(key, value)| format!("{name}.{key} = {value}")).collect()
            }
            value => vec![format!("{name} = {value}")],
        };
        Ok(all.iter().flat_map(of).collect())
    }
}

/// Keys of a documented file, each with its meaning and its limits as comments, and its default; nothing for a table. `table` is put
/// before a key, with a dot, for its full name.
fn documented(table: &str, keys: &[&str], meanings: &[&str], defaults: &toml::Table) -> String {
    let of = |(key, meaning): (&&str, &&str)| match defaults.get(*key)? {
        toml::Value::Table(_) => None,
        default => {
            let limits = limit(&format!("{table}{key}")).map(|limit| format!("# Limits: {limit}.\n"));
            Some(format!("{}{}{key} = {default}\n", comment(meaning), limits.unwrap_or_default()))
        }
    };
    keys.iter().zip(meanings).filter_map(of).collect::<Vec<_>>().join("\n")
}

fn comment(text: &str) -> String {
    text.lines().map(|line| format!("# {}\n", line.trim())).collect()
}
