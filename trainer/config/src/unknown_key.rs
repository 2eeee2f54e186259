//! Error messages for keys that a configuration does not have: the table that a key belongs to, or the key with the nearest
//! spelling.

use crate::keys::{TABLES, keys_of};
use allfold_base::suggest::nearest;

/// Words of PyTorch's programs and of other trainers, and the keys here.
const OTHER_WORDS: [(&str, &str); 26] = [
    ("optimizer", "optimiser.name"),
    ("dataset", "data.name"),
    ("batch_size", "training.batch"),
    ("gradient_accumulation_steps", "training.accumulate"),
    ("steps", "training.max_steps"),
    ("num_epochs", "training.epochs"),
    ("learning_rate", "optimiser.lr"),
    ("max_grad_norm", "optimiser.clip_norm"),
    ("scheduler", "lr_schedule.name"),
    ("lr_scheduler", "lr_schedule.name"),
    ("min_lr", "lr_schedule.floor"),
    ("gamma", "lr_schedule.factor"),
    ("warmup", "lr_schedule.warmup_steps"),
    ("autocast", "precision.amp"),
    ("num_workers", "data.workers"),
    ("sequence_length", "data.positions"),
    ("block_size", "data.positions"),
    ("d_model", "model.width"),
    ("n_embd", "model.width"),
    ("n_layer", "model.layers"),
    ("n_head", "model.heads"),
    ("vocab_size", "model.vocabulary"),
    ("bucket_cap_mb", "ddp.bucket_kib"),
    ("path", "checkpoint.dir"),
    ("root", "data.dir"),
    ("pretrained", "model.weights"),
];

/// The message for a key that its table (or with `None`, the file outside of tables) does not have. `outside` are the keys and
/// tables of the file.
pub(crate) fn unknown_key(table: Option<&str>, key: &str, outside: &[&str]) -> String {
    let given = table.map_or(key.to_string(), |table| format!("{table}.{key}"));
    match table {
        None if keys_of(key).is_some() => {
            let first = keys_of(key).and_then(|keys| keys.first()).unwrap_or(&"");
            return format!("`{key}` is a table; name a key in it, such as `{key}.{first}`");
        }
        Some(name) if keys_of(name).is_none() && outside.contains(&name) => {
            return format!("unknown key `{given}`; `{name}` is a key, not a table");
        }
        Some(name) if keys_of(name).is_none() => {
            if let Some(near) = nearest(name, TABLES.map(|(name, ..)| name)) {
                return format!("unknown key `{given}`; the nearest table is [{near}]");
            }
        }
        _ => {}
    }
    let said = elsewhere(table, key, outside).unwrap_or_else(|| resembling(table, key, outside));
    format!("unknown key `{given}`; {said}")
}

/// The message for a table that a configuration does not have.
pub(crate) fn unknown_table(name: &str) -> String {
    let all = TABLES.map(|(name, ..)| name);
    match nearest(name, all) {
        Some(near) => format!("unknown table `[{name}]`; the nearest is `[{near}]`"),
        None => format!(
            "unknown table `[{name}]`; there are {}",
            all.map(|name| format!("`[{name}]`")).join(", ")
        ),
    }
}

/// Where a key of exactly this name is.
fn elsewhere(table: Option<&str>, key: &str, outside: &[&str]) -> Option<String> {
    let have = TABLES.iter().filter(|(name, keys, _)| table != Some(name) && keys.contains(&key));
    let mut places: Vec<String> = have.map(|(name, ..)| format!("`{name}.{key}`")).collect();
    if table.is_some() && keys_of(key).is_none() && outside.contains(&key) {
        places.push(format!("`{key}`, outside of tables"));
    }
    // A key that repeats its table's name, such as `data_dir`.
    places.extend(TABLES.iter().filter_map(|(name, keys, _)| {
        let inner = key.strip_prefix(name)?.strip_prefix('_').filter(|inner| keys.contains(inner))?;
        Some(format!("`{name}.{inner}`"))
    }));
    (!places.is_empty()).then(|| format!("there is {}", places.join(" and ")))
}

/// The key that is spelled most like `key` or means the same, first in its own table.
fn resembling(table: Option<&str>, key: &str, outside: &[&str]) -> String {
    let near = |keys: &[&'static str]| nearest(key, keys.iter().copied());
    if let Some(right) = OTHER_WORDS.iter().find(|(word, _)| *word == key).map(|(_, right)| right) {
        return format!("here it is `{right}`");
    }
    if let Some((table, near)) = table.and_then(|table| Some((table, near(keys_of(table)?)?))) {
        return format!("the nearest is `{table}.{near}`");
    }
    let all: Vec<&str> = TABLES.iter().flat_map(|(_, keys, _)| *keys).chain(outside).copied().collect();
    let Some(near) = nearest(key, all).filter(|near| shares_a_third(key, near)) else {
        return "`allfold train --keys` lists the keys".into();
    };
    match TABLES.iter().find(|(_, keys, _)| keys.contains(&near)) {
        Some((table, ..)) => format!("the nearest is `{table}.{near}`"),
        None if keys_of(near).is_some_and(|keys| keys.contains(&"name")) => {
            format!("the nearest is `{near}.name`")
        }
        None => format!("the nearest is `{near}`"),
    }
}

/// Whether a third of `key`, in one piece, is in `name`: a key of another table is no guess at a word that only has some of its letters.
fn shares_a_third(key: &str, name: &str) -> bool {
    let third = key.len().div_ceil(3).max(1);
    key.as_bytes().windows(third).any(|part| name.as_bytes().windows(third).any(|other| part == other))
}
