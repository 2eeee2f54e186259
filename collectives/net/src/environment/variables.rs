//! Variables as they are read. Each error names the variable, the value that was read, and a value that would be right.

use crate::{Error, Result};
use std::str::FromStr;
use std::time::Duration;

/// The environment of a process, as a function from names to values.
pub struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Variables<'a> {
    /// Variables whose values `lookup` returns by name.
    pub fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Variables<'a> {
        Variables { lookup }
    }

    /// The text of a variable. A variable that is set to the empty text counts as not set.
    pub fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).map(|text| text.trim().to_string()).filter(|text| !text.is_empty())
    }

    /// Whether the variable is set, even if to an empty text.
    pub fn is_set(&self, name: &str) -> bool {
        (self.lookup)(name).is_some()
    }

    /// The first of these variables that is set.
    pub fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|name| Some((*name, self.text(name)?)))
    }

    /// The value of a required variable.
    pub fn required(&self, name: &str, wanted: &str) -> Result<String> {
        self.text(name).ok_or_else(|| wrong(name, None, wanted))
    }

    /// The value of a required variable that is a number.
    pub fn number<T: FromStr>(&self, name: &str) -> Result<T> {
        let text = self.required(name, "a whole number is needed")?;
        parse(name, &text)
    }

    /// The value of a variable that is a number; `None` if it is not set.
    pub fn optional<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        self.text(name).map(|text| parse(name, &text)).transpose()
    }

    /// The first of these variables that is set, as a number.
    pub fn any<T: FromStr>(&self, names: &[&'static str]) -> Result<Option<T>> {
        self.first(names).map(|(name, text)| parse(name, &text)).transpose()
    }
}

fn parse<T: FromStr>(name: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| wrong(name, Some(text), "a whole number is needed, 0 or more and not too large"))
}

/// Reads a duration in the form of variables and flags.
///
/// # Errors
/// The form that is needed. More than 30 years are refused, because the system's clock may not reach so far.
pub fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let seconds = seconds.filter(|seconds| *seconds <= Duration::from_secs(1_000_000_000));
    seconds.ok_or_else(|| "a number of seconds from 0 to 1e9 is needed".into())
}

/// [`seconds`] in which another process can answer: a millisecond or more.
///
/// # Errors
/// What is needed instead of `text`.
pub fn some_seconds(text: &str) -> std::result::Result<Duration, String> {
    let some = seconds(text).ok().filter(|seconds| *seconds >= Duration::from_millis(1));
    some.ok_or_else(|| "a number of seconds from 0.001 to 1e9 is needed".into())
}

/// The error for a variable with the value `read` (`None`: not set) where `wanted` would be right.
pub fn wrong(variable: &str, read: Option<&str>, wanted: &str) -> Error {
    Error::Environment { variable: variable.into(), read: read.map(String::from), wanted: wanted.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_those_that_a_clock_can_wait_for() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(seconds("1e9"), Ok(Duration::from_secs(1_000_000_000)));
        assert_eq!((seconds("0"), some_seconds("0.5")), (Ok(Duration::ZERO), seconds("0.5")));
        assert!(some_seconds("0").unwrap_err().contains("from 0.001"));
        for wrong in ["1e19", "1.1e9", "-1", "inf", "NaN", "soon", ""] {
            assert!(seconds(wrong).unwrap_err().contains("seconds"), "{wrong}");
        }
    }
}
