//! Variables as they are read: each mistake names its variable, what was read, and what would be right.

use crate::{Error, Result};
use std::str::FromStr;
use std::time::Duration;

/// An environment that can be looked things up in.
pub struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Variables<'a> {
    /// The variables that this gives by their names.
    pub fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Variables<'a> {
        Variables { lookup }
    }

    /// The variable's text; one that is set to nothing counts as not set.
    pub fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).map(|text| text.trim().to_string()).filter(|text| !text.is_empty())
    }

    /// The first of these variables that is set.
    pub fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|name| Some((*name, self.text(name)?)))
    }

    /// A variable that must be there.
    pub fn required(&self, name: &str, wanted: &str) -> Result<String> {
        self.text(name).ok_or_else(|| wrong(name, None, wanted))
    }

    /// A number that must be there.
    pub fn number<T: FromStr>(&self, name: &str) -> Result<T> {
        let text = self.required(name, "a whole number is needed")?;
        parse(name, &text)
    }

    /// A number that may be missing.
    pub fn optional<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        self.text(name).map(|text| parse(name, &text)).transpose()
    }

    /// The first of these numbers that is there.
    pub fn any<T: FromStr>(&self, names: &[&'static str]) -> Result<Option<T>> {
        self.first(names).map(|(name, text)| parse(name, &text)).transpose()
    }
}

fn parse<T: FromStr>(name: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| wrong(name, Some(text), "a whole number of its range is needed"))
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

/// The error of a variable.
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
        for wrong in ["1e19", "1.1e9", "-1", "inf", "NaN", "soon", ""] {
            assert!(seconds(wrong).unwrap_err().contains("seconds"), "{wrong}");
        }
    }
}
