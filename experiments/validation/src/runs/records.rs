//! RCCL-tests' files of records: an object of JSON or a line of CSV for each size and side (`--output_file`).
//!
//! ```text
//! {"name":"AllReduce","gpus":4,"size":1024,"type":"float","redop":"sum","inPlace":0,"time":19.1,"algBw":0.05,"busBw":0.08,"#wrong":"0"}
//! numCycle,collective,ranks,ranksPerNode,gpusPerRank,size,type,redop,inplace,time,algbw,busbw,#wrong
//! ```

use super::contradiction;
use super::flaw::Flaw;
use super::reading::Reading;
use super::run::{Run, RunRow, collective, numbered};
use serde_json::Value;
use std::collections::BTreeMap;

/// A record by the names of its fields in lower case.
type Fields = BTreeMap<String, String>;

/// Whether the first line of a text is a record of CSV.
pub(super) fn is_csv(first: &str) -> bool {
    let lower = first.to_lowercase();
    lower.contains("collective,") && lower.contains(",algbw,busbw")
}

/// Reads lines of CSV under their header.
pub(super) fn csv(name: &str, text: &str) -> Result<Reading, Flaw> {
    let mut lines = text.lines().enumerate();
    let header: Vec<String> = lines
        .next()
        .map_or("", |(_, first)| first)
        .split(',')
        .map(|word| word.trim().to_lowercase())
        .collect();
    let record = |(at, line): (usize, &str)| {
        let words: Vec<&str> = line.split(',').collect();
        let fields = header.iter().cloned().zip(words.iter().map(|word| word.trim().to_string())).collect();
        match words.len() == header.len() {
            true => Ok((at + 1, fields)),
            false => Err(Flaw::at(
                at + 1,
                1,
                format!("expected {} columns as in the header, found {}", header.len(), words.len()),
            )),
        }
    };
    runs(name, lines.filter(|(_, line)| !line.trim().is_empty()).map(record).collect::<Result<_, _>>()?)
}

/// Reads objects of JSON, one after the other or in a list; `None` where the text is something else.
pub(super) fn json(name: &str, text: &str) -> Option<Result<Reading, Flaw>> {
    let first =
        text.lines().map(|line| line.trim().trim_end_matches(',')).find(|line| line.starts_with('{'))?;
    let is_record = serde_json::from_str::<Value>(first).is_ok_and(|record| record.get("busBw").is_some());
    is_record.then(|| {
        let values: Vec<Value> = match text.trim_start().starts_with('[') {
            true => serde_json::from_str(text).map_err(Flaw::json)?,
            false => serde_json::Deserializer::from_str(text)
                .into_iter()
                .collect::<Result<_, _>>()
                .map_err(Flaw::json)?,
        };
        let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let fields = |value: &Value| {
            value
                .as_object()
                .into_iter()
                .flatten()
                .map(|(key, value)| (key.to_lowercase(), word(value)))
                .collect()
        };
        runs(name, values.iter().enumerate().map(|(at, value)| (at + 1, fields(value))).collect())
    })
}

/// The runs of records, one for each collective, number of ranks and type.
fn runs(name: &str, records: Vec<(usize, Fields)>) -> Result<Reading, Flaw> {
    let mut reading = Reading::default();
    let mut found: BTreeMap<(String, u32, String), Run> = BTreeMap::new();
    for (number, fields) in records {
        let field = |names: &[&str]| names.iter().find_map(|name| fields.get(*name)).map(String::as_str);
        let lacks = |what: &str| Flaw::whole(format!("record {number}: expected {what}"));
        let value = |names: &[&str]| field(names).and_then(|word| word.parse::<f64>().ok());
        let test = field(&["name", "collective"]).ok_or_else(|| lacks("`name`"))?.to_string();
        let of = |names: &[&str]| {
            value(names).filter(|count| (1.0..=1e6).contains(count)).map(|count| count as u32)
        };
        let ranks =
            of(&["gpus"]).or_else(|| Some(of(&["ranks"])?.saturating_mul(of(&["gpusperrank"]).unwrap_or(1))));
        let ranks = ranks.ok_or_else(|| lacks("`gpus` or `ranks`"))?;
        let dtype = field(&["type"]).unwrap_or_default().to_string();
        let Some(known) = collective(&test) else {
            let flaw =
                Flaw::whole(format!("`{test}` is no test of a known collective: its rows are left out"));
            reading.left_out.extend((!reading.left_out.contains(&flaw)).then_some(flaw));
            continue;
        };
        let count = found.len() + 1;
        let run = found
            .entry((test, ranks, dtype.clone()))
            .or_insert_with(|| Run { dtype, ..Run::new(numbered(name, count), known, ranks) });
        let number = |name: &str| value(&[name]).ok_or_else(|| lacks(&format!("a number as `{name}`")));
        let row = RunRow {
            bytes: number("size")? as u64,
            in_place: value(&["inplace"]).is_some_and(|side| side > 0.0),
            time_us: number("time")?,
            algbw_gbps: number("algbw")?,
            busbw_gbps: number("busbw")?,
        };
        run.add(row, value(&["#wrong", "wrong"]).unwrap_or(0.0));
    }
    for run in found.into_values() {
        let name = run.name.clone();
        match contradiction::checked(run, 1.0) {
            Ok(run) => reading.runs.push(run),
            Err(what) => reading.left_out.push(Flaw::whole(format!("{name}: {what}"))),
        }
    }
    Ok(reading)
}
