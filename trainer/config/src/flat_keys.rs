//! Files of earlier versions, which had no tables: the key `lr`, outside of tables, is now `optimiser.lr`.

use crate::keys::TABLES;
use std::borrow::Cow;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Keys that have another name in their table, and a key whose name exists in two tables.
const RENAMED: [(&str, &str, &str); 6] = [
    ("model", "model", "name"),
    ("data", "data", "name"),
    ("data_dir", "data", "dir"),
    ("optimiser", "optimiser", "name"),
    ("lr_schedule", "lr_schedule", "name"),
    ("patience", "training", "patience"),
];

/// Tables whose keys had a prefix in earlier versions, and the keys of these tables that had none.
const PREFIXED: [(&str, &str, &[&str]); 2] =
    [("lr_schedule", "lr_", &["warmup_steps", "warmup_from"]), ("checkpoint", "checkpoint_", &["resume"])];

/// The table and the key in this table that replace a key of earlier versions outside of tables; `None` if there
/// was no such key.
pub(crate) fn moved(key: &str) -> Option<(&'static str, &'static str)> {
    if let Some((_, table, inner)) = RENAMED.iter().find(|(old, ..)| *old == key) {
        return Some((table, inner));
    }
    for (table, keys, _) in TABLES.iter().filter(|(table, ..)| *table != "parallel") {
        let prefixed = PREFIXED.iter().find(|(name, ..)| name == table);
        let stood = |inner: &str| match prefixed {
            Some((_, prefix, plain)) => {
                key.strip_prefix(prefix) == Some(inner) || plain.contains(&inner) && key == inner
            }
            None => key == inner && !["name", "dir"].contains(&inner),
        };
        if let Some(inner) = keys.iter().find(|inner| stood(inner)) {
            return Some((table, inner));
        }
    }
    None
}

/// Moves keys from outside of tables into their tables, unless the table has the key too. Returns a line for
/// each moved key.
pub fn into_tables(root: &mut DeTable<'_>) -> Vec<String> {
    let flat = root.iter().filter(|(_, value)| !value.get_ref().is_table());
    let flat = flat.filter_map(|(key, _)| Some((key.get_ref().to_string(), moved(key.get_ref())?)));
    let flat: Vec<_> = flat.collect();
    let taken: Vec<_> =
        flat.iter().filter_map(|(key, place)| Some((root.remove_entry(key.as_str())?, place))).collect();
    let mut said = Vec::new();
    for ((key, value), (table, inner)) in taken {
        let at = |name: &'static str| Spanned::new(key.span(), Cow::Borrowed(name));
        let place =
            root.entry(at(table)).or_insert_with(|| Spanned::new(key.span(), DeValue::Table(DeTable::new())));
        match place.get_mut() {
            DeValue::Table(keys) if !keys.contains_key(*inner) => {
                said.push(format!("`{}` is `{table}.{inner}`", key.get_ref()));
                keys.insert(at(inner), value);
            }
            _ => {
                root.insert(key, value);
            }
        }
    }
    said
}
