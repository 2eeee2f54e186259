//! The tables of a configuration and their keys, and where an unknown key belongs.

use crate::{
    CheckpointConfig, DataConfig, DdpConfig, LrScheduleConfig, ModelConfig, OptimiserConfig, ParallelConfig,
    PrecisionConfig, TrainingConfig,
};
use allfold_base::suggest::nearest;
use documented::DocumentedFields;

/// A table: its name, its keys, and what they mean.
pub(crate) type KeyTable = (&'static str, &'static [&'static str], &'static [&'static str]);

/// The tables in the order of the documented file.
pub(crate) const TABLES: [KeyTable; 9] = [
    ("model", ModelConfig::FIELD_NAMES, ModelConfig::FIELD_DOCS),
    ("data", DataConfig::FIELD_NAMES, DataConfig::FIELD_DOCS),
    ("training", TrainingConfig::FIELD_NAMES, TrainingConfig::FIELD_DOCS),
    ("optimiser", OptimiserConfig::FIELD_NAMES, OptimiserConfig::FIELD_DOCS),
    ("lr_schedule", LrScheduleConfig::FIELD_NAMES, LrScheduleConfig::FIELD_DOCS),
    ("precision", PrecisionConfig::FIELD_NAMES, PrecisionConfig::FIELD_DOCS),
    ("ddp", DdpConfig::FIELD_NAMES, DdpConfig::FIELD_DOCS),
    ("parallel", ParallelConfig::FIELD_NAMES, ParallelConfig::FIELD_DOCS),
    ("checkpoint", CheckpointConfig::FIELD_NAMES, CheckpointConfig::FIELD_DOCS),
];

/// The table that has exactly these keys.
pub(crate) fn table_of(keys: &[&str]) -> Option<&'static str> {
    TABLES.iter().find(|(_, names, _)| *names == keys).map(|(name, ..)| *name)
}

/// What to say of a key that its table (or with `None`, the file outside of tables) does not have: the table that has it, the nearest
/// key, or where all are listed. `outside` are the keys and tables of the file.
pub(crate) fn unknown(table: Option<&str>, key: &str, outside: &[&str]) -> String {
    if let (None, Some((name, [first, ..], _))) = (table, TABLES.iter().find(|(name, ..)| *name == key)) {
        return format!("`{name}` is a table; name a key in it, such as `{name}.{first}`");
    }
    let given = table.map_or(key.to_string(), |table| format!("{table}.{key}"));
    let inside = |name: &str| table == Some(name);
    let mut right: Vec<String> = TABLES
        .iter()
        .filter(|(name, keys, _)| !inside(name) && keys.contains(&key))
        .map(|(name, ..)| format!("`{name}.{key}`"))
        .collect();
    if table.is_some() && outside.contains(&key) {
        right.push(format!("`{key}`, outside of tables"));
    }
    let own = TABLES.iter().find(|(name, ..)| inside(name)).map(|(_, keys, _)| *keys);
    let found = own.and_then(|keys| nearest(key, keys.iter().copied())).map(|key| key.to_string());
    match found {
        Some(near) if right.is_empty() => {
            format!("unknown key `{given}`; the nearest is `{}.{near}`", table.unwrap_or_default())
        }
        _ if !right.is_empty() => format!("unknown key `{given}`; there is {}", right.join(" and ")),
        _ => match nearest_anywhere(key, outside) {
            Some(near) => format!("unknown key `{given}`; the nearest is `{near}`"),
            None => format!("unknown key `{given}`; `allfold train --keys` lists the keys"),
        },
    }
}

/// The key, with its table, whose own name is most like `key`.
fn nearest_anywhere(key: &str, outside: &[&str]) -> Option<String> {
    let all = TABLES.iter().flat_map(|(_, keys, _)| *keys).chain(outside);
    let near = nearest(key, all.copied())?;
    let table = TABLES.iter().find(|(_, keys, _)| keys.contains(&near)).map(|(name, ..)| *name);
    Some(table.map_or(near.into(), |table| format!("{table}.{near}")))
}
