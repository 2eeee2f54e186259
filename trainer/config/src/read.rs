//! Reading a configuration, and replacing one of its values.

use crate::unknown_key::{unknown_key, unknown_table};
use crate::{Config, Error, Result, keys};
use allfold_base::suggest::nearest;
use allfold_base::{expected, located};
use documented::DocumentedFields;

impl Config {
    /// Reads a TOML text; `name` is the file's, for messages.
    ///
    /// # Errors
    /// Malformed TOML, a wrong type or an unknown key, with line and column, and the nearest key.
    pub fn read(text: &str, name: &str) -> Result<Config> {
        let wrong = |error: &toml::de::Error| Error(mistake(error, text, name));
        toml::from_str(text).map_err(|error| wrong(&error))
    }

    /// Checks that the values make sense, except for the names of parts to which a program can add its own.
    ///
    /// # Errors
    /// The first value that makes no sense, and what would be right.
    pub fn check_values(&self) -> Result<()> {
        self.devices()?;
        self.check_limits()?;
        self.model.check()?;
        self.data.check()?;
        self.training.check()?;
        self.optimiser.check()?;
        self.lr_schedule.check()?;
        self.precision.check()?;
        self.ddp.check()?;
        self.checkpoint.check()
    }

    /// Replaces the value of one key, such as `optimiser.lr`, written as in a file; a word needs no quotes.
    ///
    /// # Errors
    /// An unknown key, with the nearest one, or a value of another type. Only [`Config::check_values`] refuses values that make no sense.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let wrong =
            |error: String| Error(format!("`{key}`: {}", error.lines().collect::<Vec<_>>().join("; ")));
        let mut all = toml::Table::try_from(&*self).map_err(|error| wrong(error.to_string()))?;
        let (table, inner) = match key.split_once('.') {
            Some((table, inner)) => (Some(table), inner),
            None => (None, key),
        };
        let place = match table {
            Some(table) => all.get_mut(table).and_then(|table| table.get_mut(inner)),
            None => all.get_mut(key).filter(|place| !place.is_table()),
        };
        let Some(place) = place else { return Err(Error(unknown_key(table, inner, Config::FIELD_NAMES))) };
        let read = toml::from_str::<toml::Table>(&format!("value = {value}"));
        let read = read.ok().and_then(|mut read| read.remove("value"));
        *place = read.unwrap_or_else(|| toml::Value::String(value.into()));
        *self = all
            .try_into()
            .map_err(|error: toml::de::Error| wrong(unknown_word(&expected(error.message()))))?;
        Ok(())
    }
}

/// `file:line:column: what is wrong and what would be right`, in one line.
fn mistake(error: &toml::de::Error, text: &str, name: &str) -> String {
    let message = expected(error.message());
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let span = error.span().unwrap_or(0..0);
    let (before, word) =
        (text.get(..span.start).unwrap_or_default(), text.get(span.clone()).unwrap_or_default());
    let what = match &words[..] {
        [key, there @ ..] if message.starts_with("unknown field") => match keys::table_of(there) {
            None if before.trim_end().ends_with('[') => unknown_table(key),
            table => unknown_key(table, key, Config::FIELD_NAMES),
        },
        // A table's name, given a value.
        _ if message.ends_with("expected a table") && before.trim_end().ends_with('=') => {
            let key = before.lines().next_back().unwrap_or_default().trim_end_matches([' ', '=']).trim();
            unknown_key(None, key, Config::FIELD_NAMES)
        }
        _ if message == "duplicate key" => format!("`{word}` stands here and above"),
        _ => unknown_word(&message),
    };
    located(name, text, span.start, &what)
}

/// Words of PyTorch for types of numbers, and the words here.
const OTHER_WORDS: [(&str, &str); 6] = [
    ("float16", "f16"),
    ("half", "f16"),
    ("bfloat16", "bf16"),
    ("float", "f32"),
    ("float32", "f32"),
    ("float64", "f64"),
];

/// A message about a word that is no value of an enum, with the nearest value; any other message unchanged.
fn unknown_word(message: &str) -> String {
    let words: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match &words[..] {
        [word, there @ ..] if message.starts_with("unknown variant") => {
            let plain = word.strip_prefix("torch.").unwrap_or(word);
            let same = OTHER_WORDS.iter().find(|(theirs, ours)| *theirs == plain && there.contains(ours));
            let right = match (same, nearest(word, there.iter().copied())) {
                (Some((_, ours)), _) => format!("here it is `{ours}`"),
                (None, Some(near)) => format!("the nearest is `{near}`"),
                (None, None) => format!(
                    "it is one of {}",
                    there.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
                ),
            };
            format!("unknown value `{word}`; {right}")
        }
        _ if message.contains("unit variant") || message == "wanted string or table" => {
            "expected a word in quotes, as in amp = \"bf16\"; `allfold train --keys` lists the words".into()
        }
        _ => message.into(),
    }
}
