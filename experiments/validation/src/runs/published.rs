//! A run that was published somewhere, as one JSON object with rows, hardware and source.
//!
//! ```text
//! {"source": "...", "hardware": {"gpu": .., "gpus_per_node": 8, "nodes": 2, "inter_node": ".."},
//!  "collective": "all_reduce", "dtype": "float", "ranks": 16,
//!  "rows": [{"bytes": 8, "time_us": 30.1, "algbw_gbps": 0, "busbw_gbps": 0, "inplace": {..}}]}
//! ```
//!
//! A row may have a rate and no time, or a time and no rate: the missing figure is computed from the other
//! one and the size.

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
    #[serde(flatten)]
    out_of_place: Side,
    inplace: Option<Side>,
}

#[derive(Deserialize)]
struct Side {
    time_us: Option<f64>,
    algbw_gbps: Option<f64>,
    busbw_gbps: Option<f64>,
}

pub(super) fn parse(name: &str, text: &str) -> Result<Run, Flaw> {
    let file: ParameterFile = serde_json::from_str(text).map_err(Flaw::json)?;
    let mut rows = Vec::new();
    for (at, line) in file.rows.iter().enumerate() {
        let sides = [(false, Some(&line.out_of_place)), (true, line.inplace.as_ref())];
        for (in_place, side) in sides.into_iter().filter_map(|(in_place, side)| Some((in_place, side?))) {
            let row = side.row(line.bytes, in_place, file.collective.bus_factor(file.ranks.get()));
            rows.push(row.ok_or_else(|| {
                let form = if in_place { ", in place," } else { "" };
                Flaw::whole(format!(
                    "rows[{at}]{form} has neither `time_us` nor a rate above 0; expected `time_us`, `algbw_gbps` or `busbw_gbps`"
                ))
            })?);
        }
    }
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    Ok(Run {
        dtype: file.dtype,
        hardware: file.hardware,
        source: file.source,
        nccl_version: file.nccl_version,
        env: file.env.iter().map(|(key, value)| (key.clone(), word(value))).collect(),
        notes: file.notes.unwrap_or_default(),
        system: file.system,
        suspect: file.suspect,
        rows,
        ..Run::new(name.into(), file.collective, file.ranks.get())
    })
}

impl Side {
    /// The measurement with its missing figure computed: a time from a rate, a rate from the time. `None` if it has neither.
    fn row(&self, bytes: u64, in_place: bool, bus_factor: f64) -> Option<RunRow> {
        let positive = |value: Option<f64>| value.filter(|value| *value > 0.0);
        let gb = bytes as f64 / 1e3;
        let by_algbw = positive(self.algbw_gbps).map(|rate| gb / rate);
        let by_busbw = positive(self.busbw_gbps).map(|rate| gb * bus_factor / rate);
        let time_us = self.time_us.or(by_algbw).or(by_busbw.filter(|_| bus_factor > 0.0))?;
        let rate = if time_us > 0.0 { gb / time_us } else { 0.0 };
        Some(RunRow {
            bytes,
            in_place,
            time_us,
            algbw_gbps: self.algbw_gbps.unwrap_or(rate),
            busbw_gbps: self.busbw_gbps.unwrap_or(rate * bus_factor),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(row: &str) -> Result<Vec<RunRow>, String> {
        let text = format!(
            "{{\"collective\":\"all_reduce\",\"dtype\":\"float\",\"ranks\":8,\"rows\":[{{\"bytes\":1000000,{row}}}]}}"
        );
        parse("run", &text).map(|run| run.rows).map_err(|flaw| flaw.to_string())
    }

    #[test]
    fn a_time_follows_from_a_rate_and_a_rate_from_the_time() {
        for row in [
            "\"time_us\":null,\"algbw_gbps\":10.0,\"busbw_gbps\":17.5",
            "\"algbw_gbps\":10.0",
            "\"busbw_gbps\":17.5",
            "\"time_us\":100.0",
            "\"time_us\":100.0,\"algbw_gbps\":10.0,\"busbw_gbps\":17.5",
        ] {
            let rows = parsed(row).unwrap();
            assert_eq!(
                (rows[0].time_us, rows[0].algbw_gbps, rows[0].busbw_gbps),
                (100.0, 10.0, 17.5),
                "{row}"
            );
        }
        let both = parsed("\"time_us\":50.0,\"inplace\":{\"time_us\":null,\"algbw_gbps\":10.0}").unwrap();
        assert_eq!((both[0].time_us, both[1].time_us, both[1].in_place), (50.0, 100.0, true));
    }

    #[test]
    fn a_row_without_time_and_rate_is_named() {
        let said = parsed("\"time_us\":null,\"algbw_gbps\":0").unwrap_err();
        assert!(said.contains("rows[0] has neither `time_us` nor a rate"), "{said}");
        let said = parsed("\"time_us\":1.0,\"inplace\":{\"algbw_gbps\":null}").unwrap_err();
        assert!(said.contains("rows[0], in place, has neither"), "{said}");
    }
}
