//! Measured runs of collectives, read from what others wrote.
//!
//! ```text
//! nccl-tests' table (any layout, by its header)  --.
//! nccl-tests' JSON (-J, version 3)               ---+--> Run { who, what, rows } --> contradictions left out
//! a published run with its hardware and source   --'
//! ```
//!
//! The three are told apart by content. A file that cannot be read is refused with the line and the column; a row
//! that can be read and cannot be true is left out and named ([`Run::left_out`]).

mod contradiction;
mod flaw;
mod published;
mod report;
mod table;

pub use allfold_sim::machines::Description as Hardware;
pub use flaw::Flaw;

use allfold_collectives::Collective;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What one collective took over a sweep of sizes, as somebody measured it.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The file's name without its ending; `#2` and so on for the further tables of one file.
    pub name: String,
    /// What was called.
    pub collective: Collective,
    /// The element type as the run names it: `float`, `bfloat16`, `fp8_e4m3`, ...
    pub dtype: String,
    /// Size of the group.
    pub ranks: u32,
    /// Where it ran, if the run says so.
    pub hardware: Option<Hardware>,
    /// Where the figures are from, if the run says so.
    pub source: Option<String>,
    /// The library's version, if the run says so.
    pub nccl_version: Option<String>,
    /// What was set in the environment, as far as the run says.
    pub env: BTreeMap<String, String>,
    /// What whoever collected the run says of it.
    pub notes: String,
    /// The cluster, if the run names it.
    pub system: Option<String>,
    /// Whether whoever collected the run doubts it.
    pub suspect: bool,
    /// What was measured, in the order of the file; each side of a table's line is a row.
    pub rows: Vec<Row>,
    /// Rows that contradict themselves, each with the reason.
    pub left_out: Vec<String>,
}

/// One size, in place or out of place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Bytes of the larger of a rank's two buffers, nccl-tests' "size".
    pub bytes: u64,
    /// Whether the input's buffer took the result.
    pub in_place: bool,
    /// Mean time of a call in microseconds.
    pub time_us: f64,
    /// bytes / time, in GB/s (1e9), as printed.
    pub algbw_gbps: f64,
    /// algbw times nccl-tests' factor for the collective, as printed.
    pub busbw_gbps: f64,
}

/// Reads every run of a file.
///
/// # Errors
/// A file that cannot be opened or holds no run; malformed text, with its line and column; a run that contradicts
/// itself in half of its rows or more.
pub fn read(path: &Path) -> Result<Vec<Run>, Flaw> {
    let text = std::fs::read_to_string(path).map_err(|error| Flaw::whole(error).of(path))?;
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

/// A published run as it is written, whatever contradicts itself in it: for runs that tests make.
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
            "expected the `results` of nccl-tests' JSON or the `rows` of a published run; it has neither",
        )),
    }
}

/// The collective that a program or a file is named after: `all_reduce_perf`, `alltoall`, ...
fn collective(word: &str) -> Option<Collective> {
    let word = word.rsplit('/').next().unwrap_or(word);
    let name = word.strip_suffix("_perf").unwrap_or(word);
    let called =
        |collective: &Collective| [collective.name(), collective.meaning().nccl_tests].contains(&name);
    Collective::ALL.into_iter().find(called)
}

/// Turns a JSON string into a collective; what is unknown is refused where it stands.
fn collective_field<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Collective, D::Error> {
    let word = String::deserialize(from)?;
    collective(&word).ok_or_else(|| {
        let names = Collective::ALL.map(Collective::name);
        serde::de::Error::custom(allfold_sim::suggest::unknown("collective", &word, &names))
    })
}

#[cfg(test)]
mod tests;
