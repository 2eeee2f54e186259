//! A measured run, and the names of collectives in it.

use allfold_schedules::Collective;
use allfold_sim::machines::Description;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The measured times of one collective over a sweep of sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The file's name without its ending; `#2` and so on for the further tables of one file.
    pub name: String,
    /// The collective.
    pub collective: Collective,
    /// The element type as the run names it: `float`, `bfloat16`, `fp8_e4m3`, ...
    pub dtype: String,
    /// Size of the group.
    pub ranks: u32,
    /// Where it ran, if the run says so.
    pub hardware: Option<Description>,
    /// Where the figures are from, if the run says so.
    pub source: Option<String>,
    /// The library's version, if the run says so.
    pub nccl_version: Option<String>,
    /// The environment variables that the run's file mentions.
    pub env: BTreeMap<String, String>,
    /// The collector's remarks on the run.
    pub notes: String,
    /// The cluster, if the run names it.
    pub system: Option<String>,
    /// Whether the collector doubts the run.
    pub suspect: bool,
    /// The measurements in the order of the file; each side of a table's line is a row.
    pub rows: Vec<RunRow>,
    /// Rows that contradict themselves, each with the reason.
    pub left_out: Vec<String>,
}

/// One size, in place or out of place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunRow {
    /// Bytes of the larger of a rank's two buffers, nccl-tests' "size".
    pub bytes: u64,
    /// Whether the result replaced the input in its buffer.
    pub in_place: bool,
    /// Mean time of a call in microseconds.
    pub time_us: f64,
    /// bytes / time, in GB/s (1e9), as printed.
    pub algbw_gbps: f64,
    /// algbw times nccl-tests' factor for the collective, as printed.
    pub busbw_gbps: f64,
}

/// The collective that a program or a file is named after: `all_reduce_perf`, `alltoall`, ...
pub(super) fn collective(word: &str) -> Option<Collective> {
    let word = word.rsplit('/').next().unwrap_or(word);
    let name = word.strip_suffix("_perf").unwrap_or(word);
    let called =
        |collective: &Collective| [collective.name(), collective.meaning().nccl_tests].contains(&name);
    Collective::ALL.into_iter().find(called)
}

/// Turns a JSON string into a collective; what is unknown is refused where it stands.
pub(super) fn collective_field<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Collective, D::Error> {
    let word = String::deserialize(from)?;
    collective(&word).ok_or_else(|| {
        let names = Collective::ALL.map(Collective::name);
        serde::de::Error::custom(allfold_sim::suggest::unknown("collective", &word, &names))
    })
}
