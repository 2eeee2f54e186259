//! Published tables of training throughput against GPUs: which curves they hold, on which machine.
//!
//! ```text
//! rows: gpus, column, throughput, other{"Batch size / GPU"} --> a curve for each column and each of `other`
//! "NVIDIA DGX A100 (8x A100 80GB)"                          --> dgx-a100
//! "Throughput - mixed precision"                            --> half precision
//! ```

mod words;

use crate::runs::Flaw;
use allfold_networks::workloads::Precision;
use allfold_sim::read_text_at_most;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The greatest length of a table in bytes.
const LONGEST: u64 = 16 << 20;

/// One table.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalingTable {
    /// The file's name without its ending.
    pub name: String,
    /// The publication, as a citation or address.
    pub source: String,
    /// The description of the machine, as published.
    pub hardware: String,
    /// The name of the machine for `--topology`; `None` if the description matches no known machine.
    pub machine: Option<String>,
    /// The name of the model, as published.
    pub model: String,
    /// Why the table is not trusted; `None` if it is.
    pub suspect: Option<String>,
    /// Whether the table is of inference, in which nothing is exchanged.
    pub evaluation: bool,
    /// The curves, one for each column and setting.
    pub curves: Vec<Curve>,
}

/// Throughput by number of GPUs; all other settings are equal.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The name of the column, and the settings that distinguish the curve from others.
    pub name: String,
    /// The precision of the curve's runs.
    pub precision: Precision,
    /// Samples per GPU and step, as published.
    pub batch: Option<u32>,
    /// The number of micro-batches whose gradients are summed before one exchange.
    pub accumulation: u32,
    /// GPUs and samples (or tokens, ..) per second, fewest GPUs first; in a table of times to train, minutes in place of the rate.
    pub points: Vec<(u32, f64)>,
    /// Why the curve cannot be compared with a prediction, such as rows that contradict each other; `None` if it can.
    pub odd: Option<String>,
}

#[derive(Deserialize)]
struct File {
    source: String,
    hardware: Hardware,
    model: String,
    #[serde(default)]
    suspect: bool,
    #[serde(default)]
    notes: Option<String>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Hardware {
    Words(String),
    Parts { system: String, gpu: String },
}

#[derive(Deserialize)]
struct Row {
    gpus: u32,
    column: Option<String>,
    throughput: Option<f64>,
    time_to_train_min: Option<f64>,
    #[serde(default)]
    other: BTreeMap<String, String>,
}

/// Reads a file.
///
/// # Errors
/// A file that cannot be opened; malformed text, with its line and column.
pub fn read(path: &Path) -> Result<ScalingTable, Flaw> {
    let text = read_text_at_most(path, LONGEST, "a table of training throughput")
        .map_err(|error| Flaw::whole(error).of(path))?;
    let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    parse(&name, &text).map_err(|flaw| flaw.of(path))
}

/// Whether a text is a table of training throughput: its rows give numbers of GPUs, not of bytes.
pub fn is_table(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Shape {
        rows: Vec<Key>,
    }
    #[derive(Deserialize)]
    struct Key {
        #[serde(rename = "gpus")]
        _gpus: u32,
    }
    serde_json::from_str::<Shape>(text).is_ok_and(|shape| !shape.rows.is_empty())
}

/// Whether a file can be read and is a table of training throughput.
pub fn is_table_file(path: &Path) -> bool {
    read_text_at_most(path, LONGEST, "a table of training throughput").is_ok_and(|text| is_table(&text))
}

/// Reads a text; `name` becomes the name of the table.
///
/// # Errors
/// As [`read`].
pub fn parse(name: &str, text: &str) -> Result<ScalingTable, Flaw> {
    let file: File = serde_json::from_str(text).map_err(Flaw::json)?;
    let (hardware, words) = match &file.hardware {
        Hardware::Words(words) => (words.clone(), words.clone()),
        Hardware::Parts { system, gpu } => (format!("{system}: {gpu}"), system.clone()),
    };
    let mut curves: Vec<Curve> = Vec::new();
    for (at, row) in file.rows.iter().enumerate() {
        let value = row.throughput.or(row.time_to_train_min);
        let Some(value) = value.filter(|value| value.is_finite() && *value > 0.0) else {
            let what =
                format!("rows[{at}] has no `throughput` and no `time_to_train_min` above 0; expected one");
            return Err(Flaw::whole(what));
        };
        if row.gpus == 0 || row.gpus > 1 << 24 {
            return Err(Flaw::whole(format!("rows[{at}] has {} GPUs; expected 1 or more", row.gpus)));
        }
        let column = row.column.as_deref().unwrap_or("time to train").trim().to_string();
        let settings = row.other.iter().filter(|(key, _)| !words::is_result(key));
        let settings: Vec<String> =
            settings.map(|(key, value)| format!("{} {}", key.trim(), value.trim())).collect();
        let name =
            if settings.is_empty() { column.clone() } else { format!("{column}; {}", settings.join(", ")) };
        let at = match curves.iter().position(|curve| curve.name == name) {
            Some(at) => at,
            None => {
                let precision = words::precision(&column);
                let batch = words::batch(&row.other, precision);
                let odd = match row.time_to_train_min {
                    Some(_) => Some("the global batch changes with the GPUs".to_string()),
                    None if words::other_unit(&column, batch) => {
                        Some("its rate is in tokens and its batch in sentences".to_string())
                    }
                    None => None,
                };
                curves.push(Curve {
                    precision,
                    batch,
                    accumulation: words::accumulation(&row.other, precision),
                    points: Vec::new(),
                    odd,
                    name,
                });
                curves.len() - 1
            }
        };
        match curves[at].points.iter().find(|(gpus, _)| *gpus == row.gpus) {
            // Two equal rows count as one; two rows that differ contradict each other.
            Some((_, known)) if *known == value => {}
            Some(_) => curves[at].odd = Some(format!("two rows for {} GPUs that differ", row.gpus)),
            None => curves[at].points.push((row.gpus, value)),
        }
    }
    curves.iter_mut().for_each(|curve| curve.points.sort_by_key(|point| point.0));
    Ok(ScalingTable {
        name: name.into(),
        source: file.source,
        machine: words::machine(&words),
        evaluation: hardware.contains("Evaluation"),
        hardware,
        model: file.model,
        suspect: file.suspect.then(|| file.notes.unwrap_or_else(|| "marked as suspect".into())),
        curves,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(name: &str) -> ScalingTable {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/scaling");
        read(&folder.join(format!("{name}.json"))).unwrap()
    }

    #[test]
    fn columns_and_settings_become_curves() {
        let table = fixture("dle_pytorch_classification_convnets_resnet50v1_5_1");
        assert_eq!(table.machine.as_deref(), Some("dgx-a100"));
        let [tf32, half] = &table.curves[..] else { panic!("{:?}", table.curves) };
        assert_eq!((tf32.precision, half.precision), (Precision::Tf32, Precision::Half));
        assert_eq!(half.points[0], (1, 2470.0));
        let dgx2 = fixture("dle_mxnet_classification_rn50v1_5_3");
        assert_eq!((dgx2.machine.as_deref(), dgx2.curves[0].points.len()), (Some("dgx2"), 5));
        assert!(fixture("dle_tensorflow_segmentation_vnet_1").suspect.is_some());
        let mlperf = fixture("mlperf0.7_dgxa100_resnet");
        assert!(mlperf.curves[0].odd.is_some());
        assert_eq!(mlperf.machine.as_deref(), Some("dgx-a100"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let said = |text: &str| parse("t", text).unwrap_err().to_string();
        assert!(said("{").starts_with("line 1, column 1"), "{}", said("{"));
        let row =
            |row: &str| format!("{{\"source\":\"\",\"hardware\":\"\",\"model\":\"\",\"rows\":[{row}]}}");
        assert!(said(&row("{\"gpus\":8}")).contains("rows[0] has no `throughput`"));
        assert!(said(&row("{\"gpus\":0,\"throughput\":1}")).contains("has 0 GPUs"));
        assert!(said(&row("{\"gpus\":-1,\"throughput\":1}")).contains("line 1"));
        assert!(is_table(&row("{\"gpus\":8}")) && !is_table("{\"rows\":[{\"bytes\":8}]}") && !is_table("{"));
    }
}
