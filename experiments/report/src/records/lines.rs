//! A record as a line of JSON, and lines read back.

use super::kinds::RecordKind;
use crate::sizes::MOST_RANKS;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the lines' schema.
pub const SCHEMA: u32 = 2;

/// The origin of a record; the same for all records of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamp {
    /// The commit that the binary was built from.
    pub commit: String,
    /// The machine's name.
    pub host: String,
    /// The seed of everything random in the run; left out where nothing is random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The command that makes the record again; empty, and not written, in a record with the command of the record before it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
}

#[derive(Serialize)]
struct Line<'a, R> {
    schema: u32,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<bool>,
    #[serde(flatten)]
    body: &'a R,
    #[serde(flatten)]
    stamp: &'a Stamp,
}

/// A record as its line, without the newline.
pub fn line<R: RecordKind>(record: &R, stamp: &Stamp) -> serde_json::Result<String> {
    let line = Line { schema: SCHEMA, kind: R::KIND, measured: R::MEASURED, body: record, stamp };
    serde_json::to_string(&line)
}

/// Checks the numbers of a record: a number of ranks is 1 to [`MOST_RANKS`], and any other number is one that a plot can show.
fn numbers(value: &Value) -> Result<(), String> {
    const LARGEST: f64 = 1e100;
    let object = value.as_object().into_iter().flatten().map(|(key, value)| (&**key, value));
    let list = value.as_array().into_iter().flatten().map(|value| ("a number", value));
    for (key, value) in object.chain(list) {
        match (key, value.as_f64()) {
            ("ranks", Some(ranks)) if !(1.0..=f64::from(MOST_RANKS)).contains(&ranks) => {
                return Err(format!("`ranks` is {value}; it must be 1 to {MOST_RANKS}"));
            }
            (_, Some(number)) if number.abs() > LARGEST => {
                return Err(format!("`{key}` is {value}; it must be -{LARGEST:e} to {LARGEST:e}"));
            }
            _ => numbers(value)?,
        }
    }
    Ok(())
}

/// Records that were read back.
#[derive(Clone, Debug, Default)]
pub struct Records(Vec<Value>);

impl Records {
    /// Reads JSON lines. Empty lines are passed over; anything else that is no record is an error that names its
    /// line, from 1.
    pub fn parse(text: &str) -> Result<Records, String> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let records = lines.map(|(at, line)| {
            let value: Value = serde_json::from_str(line).map_err(|e| {
                let (line, column) = (at + 1, e.column());
                let log = ["busbw", "bus_bw"].iter().any(|name| text.contains(name)) && !text.contains("\"schema\"");
                let hint = if log { "; of nccl-tests' output `allfold validate LOG --topology NAME --json FILE` makes records" } else { "" };
                format!("line {line}: no JSON record: it is no JSON at column {column}; a record is one line, {{\"schema\":{SCHEMA},..}}{hint}")
            })?;
            numbers(&value).map_err(|why| format!("line {}: {why}", at + 1))?;
            match value.get("schema").and_then(Value::as_u64) {
                Some(schema) if schema == u64::from(SCHEMA) => Ok(value),
                Some(schema) => Err(format!("line {}: schema {schema}; this version reads {SCHEMA}", at + 1)),
                None => {
                    Err(format!("line {}: no `schema`; a record starts {{\"schema\":{SCHEMA},..", at + 1))
                }
            }
        });
        records.collect::<Result<_, _>>().map(Records)
    }

    /// Every record of one type, in order.
    pub fn all<R: RecordKind>(&self) -> Vec<R> {
        self.stamped().into_iter().map(|(record, _)| record).collect()
    }

    /// Every record of one type, each with its origin.
    pub fn stamped<R: RecordKind>(&self) -> Vec<(R, Stamp)> {
        let of_type = self.0.iter().filter(|value| {
            value["kind"] == R::KIND && value.get("measured").and_then(Value::as_bool) == R::MEASURED
        });
        of_type
            .filter_map(|value| Some((R::deserialize(value).ok()?, Stamp::deserialize(value).ok()?)))
            .collect()
    }

    /// Number of records of all kinds.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The records of all kinds but these.
    pub fn without(&self, kinds: &[&str]) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |value| !kinds.iter().any(|kind| value["kind"] == **kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{CollectiveCall, MeasuredCollective, ProofRecord, SimulatedCollective};

    fn stamp() -> Stamp {
        Stamp { commit: "c0ffee".into(), host: "h".into(), seed: Some(7), command: "allfold bench".into() }
    }

    fn call() -> CollectiveCall {
        CollectiveCall {
            collective: "all_reduce".into(),
            algorithm: "ring".into(),
            ranks: 4,
            dtype: "f32".into(),
            op: Some("sum".into()),
            root: None,
            count: 2,
            bytes: 8,
            tree_hash: Some("00".into()),
            order_class: Some("positional".into()),
        }
    }

    fn measured() -> MeasuredCollective {
        MeasuredCollective {
            backend: "threads".into(),
            device: "cpu".into(),
            path: None,
            call: call(),
            in_place: true,
            iterations: 3,
            time_us: 1.5,
            time_error_us: 0.1,
            algbw_gbps: 2.0,
            busbw_gbps: 3.0,
            nccl_estimate_us: None,
            wrong_elements: Some(0),
            checksum: Some("ab".into()),
        }
    }

    #[test]
    fn a_line_reads_back_as_what_it_was_and_as_nothing_else() {
        let text = line(&measured(), &stamp()).unwrap();
        assert!(text.starts_with(
            r#"{"schema":2,"kind":"collective","measured":true,"backend":"threads","device":"cpu""#
        ));
        let records = Records::parse(&format!("{text}\n\n")).unwrap();
        assert_eq!(records.all::<MeasuredCollective>(), [measured()]);
        assert_eq!(records.stamped::<MeasuredCollective>()[0].1, stamp());
        assert!(
            records.all::<SimulatedCollective>().is_empty(),
            "measured rows never read as simulated ones"
        );
        assert!(records.all::<ProofRecord>().is_empty());
    }

    #[test]
    fn what_is_no_record_is_named_by_its_line() {
        assert!(Records::parse("\n{").unwrap_err().starts_with("line 2: no JSON record"));
        assert!(Records::parse(r#"{"schema":1}"#).unwrap_err().contains("this version reads 2"));
        assert!(Records::parse("{}").unwrap_err().contains("no `schema`"));
        for (wrong, says) in [
            ("\"ranks\":0", "line 2: `ranks` is 0; it must be 1 to 1048576"),
            ("\"setup\":{\"ranks\":4294967295}", "line 2: `ranks` is 4294967295; it must be 1 to 1048576"),
            ("\"efficiency\":1e308", "line 2: `efficiency` is 1e+308; it must be -1e100 to 1e100"),
            ("\"losses\":[1.0,-1e300]", "line 2: `a number` is -1e+300; it must be -1e100 to 1e100"),
        ] {
            let text = format!("{{\"schema\":2,\"kind\":\"k\"}}\n{{\"schema\":2,\"kind\":\"k\",{wrong}}}");
            assert_eq!(Records::parse(&text).unwrap_err(), says);
        }
    }
}
