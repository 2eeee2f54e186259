//! Rows of training speed that others published: read, and made into jobs that can be predicted.
//!
//! ```text
//! file:  system, gpu, gpus_per_node, interconnect --> Cluster, name of the system   machine.rs
//!        model ---------------------------------.--> LargeModel                     shapes.rs
//! row:   model_layers, heads -------------------'
//!        gpus, tp, pp, vp, cp, ep, batch, .. -------> Layout                         layout.rs
//!        software, precision, notes ---------------> Framework, OperandPrecision    recipe.rs
//!        measured ---------------------------------> seconds of a step              measured.rs
//! ```
//!
//! Nothing is taken from a file's name. What a row leaves open is filled in with what the software usually does; what it contradicts is
//! left out with a reason.

mod fields;
mod layout;
mod machine;
mod measured;
mod names;
mod recipe;
mod shapes;
#[cfg(test)]
mod tests;
mod unusable;
mod words;

use crate::job::{Details, TrainingJob};
use crate::memory::MemoryMeter;
use allfold_sim::read_text_at_most;
use fields::Fields;
use machine::Machine;
use recipe::Software;
use serde_json::Value;
use std::path::Path;
use unusable::Unusable;
use words::has;

/// The greatest length of a file in bytes.
const LONGEST: u64 = 16 << 20;

/// One published row.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingRow {
    /// The file's name without its ending.
    pub run: String,
    /// The row's place in the file, from 0.
    pub row: usize,
    /// The name of the cluster.
    pub system: String,
    /// What was trained, and how.
    pub job: TrainingJob,
    /// Seconds of a step; `None` where nothing was measured.
    pub step_s: Option<f64>,
    /// Memory of a GPU in GB (1e9 bytes), as the source reads it.
    pub memory_gb: Option<f64>,
    /// What reads that memory.
    pub meter: MemoryMeter,
    /// Whether the job did not fit into memory; `None` if that is not stated.
    pub out_of_memory: Option<bool>,
    /// Whether the collector of the row doubts it. Such rows take part in no fit and no score.
    pub suspect: bool,
    /// Whether the source itself warns of large errors.
    pub noisy: bool,
}

/// A row that cannot be predicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOutRow {
    /// The file's name without its ending.
    pub run: String,
    /// The row's place in the file, from 0.
    pub row: usize,
    /// What is missing, or what is wrong and what would be right.
    pub why: String,
    /// Whether the row is wrong, not only silent.
    pub wrong: bool,
    /// Whether the collector of the row doubts it.
    pub suspect: bool,
}

/// The rows of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowsFile {
    /// Rows that can be predicted.
    pub rows: Vec<TrainingRow>,
    /// All other rows.
    pub left_out: Vec<LeftOutRow>,
}

/// Whether a text has rows of training speed: it describes a model by an object, or one GPU and its system, or its rows have lengths of
/// sequences.
pub fn is_rows(text: &str) -> bool {
    let Ok(value) = serde_json::from_str::<Value>(text) else { return false };
    let described = value.get("model").is_some_and(|model| !model.is_string());
    let Value::Object(file) = names::usual(value) else { return false };
    let rows = file.get("rows").and_then(Value::as_array);
    let first = rows.and_then(|rows| rows.first());
    let long = first.is_some_and(|row| row.get("sequence_length").is_some());
    let of_gpus =
        file.contains_key("gpu") && ["system", "sequence_length"].iter().any(|key| file.contains_key(*key));
    rows.is_some() && (described || long || of_gpus)
}

/// Whether a file can be read and has rows of training speed.
pub fn is_rows_file(path: &Path) -> bool {
    read_text_at_most(path, LONGEST, "rows of training speed").is_ok_and(|text| is_rows(&text))
}

/// Reads a file.
///
/// # Errors
/// A file that cannot be read, is no JSON, or describes no training run; one line with the file's name.
pub fn read(path: &Path) -> Result<RowsFile, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = read_text_at_most(path, LONGEST, "rows of training speed").map_err(|error| wrong(&error))?;
    let run = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    parse(&run, &text).map_err(|error| wrong(&error))
}

/// Reads a text; `run` becomes the name of its rows.
///
/// # Errors
/// As [`read`].
pub fn parse(run: &str, text: &str) -> Result<RowsFile, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Value::Object(mut file) = names::usual(value) else {
        return Err("an object with `model` and `rows` is right".into());
    };
    let rows = file.remove("rows");
    let fields = Fields(&file);
    let kind = fields.text("kind")?;
    if !kind.is_empty() && !kind.to_lowercase().starts_with("train") {
        return Err(format!("these are rows of \"{kind}\", not of training"));
    }
    let Some(Value::Array(rows)) = rows else {
        return Err("`rows` is no list; a list of rows is right".into());
    };
    if fields.object("model")?.is_none() && rows.is_empty() {
        return Err("there is no `model`; rows of training name one".into());
    }
    let notes = fields.text("notes")?;
    let mut found = RowsFile::default();
    for (at, row) in rows.iter().enumerate() {
        let read = match row {
            // What a row does not state of itself the file states for all, but for its notes.
            Value::Object(row) => {
                let mut whole = file.clone();
                whole.remove("notes");
                let stated = row.iter().filter(|(_, value)| !value.is_null());
                whole.extend(stated.map(|(key, value)| (key.clone(), value.clone())));
                Head::read(&Fields(&whole), notes)
                    .map_err(Unusable::from)
                    .and_then(|head| head.row(run, at, &Fields(&whole)))
            }
            _ => Err(Unusable::Wrong("the row is no object; fields by name are right".into())),
        };
        let suspect = row.get("suspect").and_then(Value::as_bool).unwrap_or(false);
        let left_out = |why, wrong| LeftOutRow { run: run.into(), row: at, why, wrong, suspect };
        match read {
            Ok(row) => found.rows.push(row),
            Err(Unusable::Silent(why)) => found.left_out.push(left_out(why, false)),
            Err(Unusable::Wrong(why)) => found.left_out.push(left_out(why, true)),
        }
    }
    Ok(found)
}

/// What a row has of its file. Texts are in lower case.
struct Head<'a> {
    model: Fields<'a>,
    /// The machine; the reason if it cannot be described.
    machine: Result<Machine, String>,
    software: String,
    task: String,
    /// How FLOP are counted.
    counts: String,
}

impl<'a> Head<'a> {
    fn read(file: &Fields<'a>, notes: &str) -> Result<Head<'a>, String> {
        let Some(model) = file.object("model")? else {
            return Err("there is no `model`; rows of training name one".into());
        };
        let machine = Machine::read(file, file.text("source")?);
        let counts = format!("{}; {notes}", file.text("tflops_counts")?).to_lowercase();
        let (software, task) = (file.text("software")?.to_lowercase(), file.text("task")?.to_lowercase());
        Ok(Head { model, machine, software, task, counts })
    }

    fn row(&self, run: &str, at: usize, row: &Fields<'_>) -> Result<TrainingRow, Unusable> {
        let notes = row.text("notes")?.to_lowercase();
        let (suspect, out_of_memory) = (row.flag("suspect")?.unwrap_or(false), row.flag("out_of_memory")?);
        let (memory_gb, measured) = (row.positive("memory_gb")?, row.object("measured")?);
        let name = self.model.text("name")?;
        if row.count("sequence_length")?.is_none() {
            let what = if shapes::is_encoder_decoder(name) {
                "lengths of encoder and decoder"
            } else {
                "sequence length"
            };
            return Err(Unusable::Silent(format!("{what} not stated")));
        }
        let machine = self.machine.as_ref().map_err(|why| Unusable::Wrong(why.clone()))?;
        let model =
            shapes::model(&self.model, row, &notes).map_err(|why| match why.contains("not stated") {
                true => Unusable::Silent(why),
                false => Unusable::Wrong(why),
            })?;
        let precision_words = row.text("precision")?;
        let sharding = recipe::sharding(row.text("sharding")?)?;
        let own = row.text("software")?.to_lowercase();
        let software = if own.is_empty() { &self.software } else { &own };
        let around = format!("{software} {notes} {}", precision_words.to_lowercase());
        let model_parallel = layout::is_model_parallel(row)?;
        let generation = machine.cluster.generation;
        let framework =
            Software { words: software, around: &around, generation, sharding, model_parallel }.framework();
        let sharding = match row.text("sharding")? {
            "" => recipe::usual_sharding(framework),
            _ => sharding,
        };
        let layout = layout::read(row, &model, &notes, sharding, framework)?;
        let tuned = has(&self.task, &["sft", "lora", "finetun", "fine-tun"]);
        let job = TrainingJob {
            precision: recipe::precision(precision_words, generation)?,
            lora: has(&self.task, &["lora", "peft"]),
            packed: tuned && has(software, &["nemo", "megatron-bridge"]) || notes.contains("packed"),
            release: recipe::released(row.text("release")?, &notes, software),
            details: details(&notes, row.text("offload")?),
            model,
            layout,
            cluster: machine.cluster.clone(),
            framework,
        };
        let step_s = measured::seconds(measured.as_ref(), &job, &self.counts)?;
        if step_s.is_none() && memory_gb.is_none() && out_of_memory != Some(true) {
            return Err(Unusable::Silent("nothing measured".into()));
        }
        let (run, system) = (run.to_string(), machine.system.clone());
        let meter = MemoryMeter::of(&format!("{} {notes}", self.counts), framework);
        let noisy = has(&notes, &["source warns", "unsteady"]);
        Ok(TrainingRow { run, row: at, system, job, step_s, memory_gb, meter, out_of_memory, suspect, noisy })
    }
}

fn details(notes: &str, offload: &str) -> Details {
    Details {
        unfused_attention: has(notes, &["without flash", "no flash", "unfused attention"]),
        async_tensor: has(notes, &["async tp", "asynctp", "async tensor"]),
        pure_16_bit: has(notes, &["(pure)", "pure bf16", "optimizer state in bf16"]),
        token_drop: has(notes, &["tokendrop", "token drop", "token-drop", "capacity factor"]),
        no_overlap: has(notes, &["no overlap"]),
        offload: recipe::offload(offload),
    }
}
