//! A run that was published somewhere, as one JSON object: rows beside the hardware and the source.
//!
//! ```text
//! {"source": "...", "hardware": {"gpu": .., "gpus_per_node": 8, "nodes": 2, "inter_node": ".."},
//!  "collective": "all_reduce", "dtype": "float", "ranks": 16,
//!  "rows": [{"bytes": 8, "time_us": 30.1, "algbw_gbps": 0, "busbw_gbps": 0, "inplace": {..}}]}
//! ```

use super::flaw::Flaw;
use super::run::{Run, RunRow, collective_field};
use allfold_schedules::Collective;
use allfold_sim::machines::Description;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct ParameterFile {
    source: Option<String>,
    hardware: Option<Description>,
    nccl_version: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, Value>,
    #[serde(deserialize_with = "collective_field")]
    collective: Collective,
    dtype: String,
    ranks: std::num::NonZeroU32,
    notes: Option<String>,
    system: Option<String>,
    #[serde(default)]
    suspect: bool,
    rows: Vec<Line>,
}

#[derive(Deserialize)]
struct Line {
    bytes: u64,
    time_us: f64,
    algbw_gbps: f64,
    busbw_gbps: f64,
    inplace: Option<Side>,
}

#[derive(Deserialize)]
struct Side {
    time_us: f64,
    algbw_gbps: f64,
    busbw_gbps: f64,
}

pub(super) fn parse(name: &str, text: &str) -> Result<Run, Flaw> {
    let file: ParameterFile = serde_json::from_str(text).map_err(Flaw::json)?;
    let rows = file.rows.iter().flat_map(Line::rows);
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    Ok(Run {
        name: name.into(),
        collective: file.collective,
        dtype: file.dtype,
        ranks: file.ranks.get(),
        hardware: file.hardware,
        source: file.source,
        nccl_version: file.nccl_version,
        env: file.env.iter().map(|(key, value)| (key.clone(), word(value))).collect(),
        notes: file.notes.unwrap_or_default(),
        system: file.system,
        suspect: file.suspect,
        rows: rows.collect(),
        left_out: Vec::new(),
    })
}

impl Line {
    fn rows(&self) -> impl Iterator<Item = RunRow> {
        let &Line { bytes, time_us, algbw_gbps, busbw_gbps, ref inplace } = self;
        let first = RunRow { bytes, in_place: false, time_us, algbw_gbps, busbw_gbps };
        let second = inplace.as_ref().map(|&Side { time_us, algbw_gbps, busbw_gbps }| RunRow {
            bytes,
            in_place: true,
            time_us,
            algbw_gbps,
            busbw_gbps,
        });
        std::iter::once(first).chain(second)
    }
}
