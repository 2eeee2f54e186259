//! Reads a file of runs in any of the layouts.

use super::flaw::Flaw;
use super::run::Run;
use super::{contradiction, published, report, table};
use allfold_sim::read_text_at_most;
use serde::Deserialize;
use std::path::Path;

/// The greatest length of a run's file in bytes.
const LONGEST: u64 = 16 << 20;

/// Reads every run of a file.
///
/// # Errors
/// A file that cannot be opened or holds no run; malformed text, with its line and column; a run that contradicts
/// itself in half of its rows or more.
pub fn read(path: &Path) -> Result<Vec<Run>, Flaw> {
    let text =
        read_text_at_most(path, LONGEST, "a measured run").map_err(|error| Flaw::whole(error).of(path))?;
    let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    parse(&name, &text).map_err(|flaw| flaw.of(path))
}

/// Reads every run of a text; `name` is what the runs are called, and names the collective where a table does not.
///
/// # Errors
/// As [`read`].
pub fn parse(name: &str, text: &str) -> Result<Vec<Run>, Flaw> {
    let mut runs = match text.trim_start().starts_with('{') {
        true => vec![json(name, text)?],
        false => table::parse(name, text)?,
    };
    runs.iter_mut().try_for_each(contradiction::leave_out)?;
    Ok(runs)
}

/// Reads a published run without checking it for contradictions: for runs that tests make.
#[cfg(test)]
pub(crate) fn parse_unchecked(name: &str, text: &str) -> Result<Run, Flaw> {
    json(name, text)
}

/// nccl-tests' own JSON has `results`, a published run has `rows`.
fn json(name: &str, text: &str) -> Result<Run, Flaw> {
    #[derive(Deserialize)]
    struct Keys {
        results: Option<serde::de::IgnoredAny>,
        rows: Option<serde::de::IgnoredAny>,
    }
    let keys: Keys = serde_json::from_str(text).map_err(Flaw::json)?;
    match (keys.results, keys.rows) {
        (Some(_), _) => report::parse(name, text),
        (None, Some(_)) => published::parse(name, text),
        (None, None) => Err(Flaw::whole(
            "expected the `results` of nccl-tests' JSON or the `rows` of a published run; it has neither; a file on \
             hardware is given by --machine",
        )),
    }
}
