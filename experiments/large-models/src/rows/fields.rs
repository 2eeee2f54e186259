//! Values of a JSON object by key, with errors that say which field is wrong and what would be right.

use serde_json::{Map, Value};

/// The largest count that a field may have: layers, GPUs, tokens of a sequence.
const MOST: f64 = 2e9;

/// An object of a file.
pub(super) struct Fields<'a>(pub(super) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// The value of a key; `None` if it is left out or null.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// A number above 0.
    pub(super) fn positive(&self, key: &str) -> Result<Option<f64>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|number| number.is_finite() && *number > 0.0) {
            Some(number) => Ok(Some(number)),
            None => Err(format!("`{key}` is {}; a number above 0 is right", short(value))),
        }
    }

    /// A whole number of 1 or more.
    pub(super) fn count(&self, key: &str) -> Result<Option<u32>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|number| (1.0..=MOST).contains(number) && number.fract() == 0.0) {
            Some(number) => Ok(Some(number as u32)),
            None => Err(format!("`{key}` is {}; a whole number of 1 or more is right", short(value))),
        }
    }

    /// A text; empty if it is left out. True and false count as their words.
    pub(super) fn text(&self, key: &str) -> Result<&'a str, String> {
        match self.get(key) {
            None => Ok(""),
            Some(Value::String(text)) => Ok(text),
            Some(Value::Bool(flag)) => Ok(if *flag { "true" } else { "false" }),
            Some(other) => Err(format!("`{key}` is {}; a text is right", short(other))),
        }
    }

    /// True or false; `None` if it is left out.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(format!("`{key}` is {}; true or false is right", short(other))),
        }
    }

    /// An object; `None` if it is left out.
    pub(super) fn object(&self, key: &str) -> Result<Option<Fields<'a>>, String> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields(map))),
            Some(other) => Err(format!("`{key}` is {}; an object is right", short(other))),
        }
    }
}

/// A value in an error: at most 40 characters of it.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}..", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
