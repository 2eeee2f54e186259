//! Every parser of files from outside, one function each, for the fuzzers and for the mutations that CI runs.
//!
//! A parser may refuse its file; it must not panic, hang or allocate a size that the file claims.

use allfold_collectives::schedule::ScheduleTable;
use allfold_large_models::rows::{self as training, RowsFile};
use allfold_report::records::{MeasuredCollective, Records, SimulatedCollective};
use allfold_sim::files::{NcclGraphs, NcclTopology};
use allfold_sim::machines::node::Fabrics;
use allfold_sim::machines::presets::Preset;
use allfold_sim::{BytesPerSec, Faults, Link, Picos, Topology};
use allfold_trainer::models::mlp;
use allfold_trainer::{Config, Model, Sgd, checkpoint, data, weights};
use allfold_triage::DumpReader;
use allfold_validation::file::ParameterFile;
use allfold_validation::{runs, scaling_tables};
use std::path::{Path, PathBuf};

/// A parser: its name, which is also its folder of seeds in `fuzz/corpus`, and what it does with a file.
pub struct Parser {
    /// The name of the fuzz target.
    pub name: &'static str,
    /// Parses a file and drops the result.
    pub run: Reads,
}

/// How a parser reads a file.
pub enum Reads {
    /// The input as text; invalid UTF-8 is replaced.
    Text(fn(&str)),
    /// The input as bytes.
    Bytes(fn(&[u8])),
}

impl Parser {
    /// Parses bytes that need not be a valid file.
    pub fn read(&self, bytes: &[u8]) {
        match self.run {
            Reads::Text(read) => read(&String::from_utf8_lossy(bytes)),
            Reads::Bytes(read) => read(bytes),
        }
    }
}

/// Rows of training speed of large models.
fn training_rows(text: &str) -> Result<RowsFile, String> {
    training::is_rows(text);
    training::parse("fuzz", text)
}

/// All parsers.
pub const PARSERS: [Parser; 23] = [
    Parser { name: "nccl_topology", run: Reads::Text(nccl_topology) },
    Parser { name: "nccl_graph", run: Reads::Text(|text| drop(NcclGraphs::read("fuzz", text))) },
    Parser { name: "astra_network", run: Reads::Text(|text| drop(Topology::from_astra("fuzz", text, 16))) },
    Parser { name: "topology_toml", run: Reads::Text(|text| drop(Topology::from_toml("fuzz", text, 4))) },
    Parser { name: "msccl", run: Reads::Text(|text| drop(ScheduleTable::from_msccl(text))) },
    Parser { name: "nccl_tests", run: Reads::Text(|text| drop(runs::parse("all_reduce", text))) },
    Parser { name: "nccl_log", run: Reads::Bytes(|bytes| drop(runs::parse_log(bytes))) },
    Parser { name: "machine", run: Reads::Text(machine) },
    Parser { name: "training_rows", run: Reads::Text(|text| drop(training_rows(text))) },
    Parser { name: "scaling_table", run: Reads::Text(|text| drop(scaling_tables::parse("fuzz", text))) },
    Parser {
        name: "parameters",
        run: Reads::Text(|text| drop(ParameterFile::parse(text).map(|file| file.parameters()))),
    },
    Parser {
        name: "configuration",
        run: Reads::Text(|text| drop(allfold_trainer::config::parse(text, "fuzz"))),
    },
    Parser { name: "records", run: Reads::Text(records) },
    Parser { name: "faults", run: Reads::Text(faults) },
    Parser { name: "idx", run: Reads::Bytes(data::read_any_idx) },
    Parser { name: "cifar", run: Reads::Bytes(data::read_any_cifar) },
    Parser { name: "picture", run: Reads::Bytes(data::read_any_picture) },
    Parser { name: "npy", run: Reads::Bytes(data::read_any_npy) },
    Parser { name: "weights", run: Reads::Bytes(weights_of) },
    Parser { name: "state_dict", run: Reads::Bytes(state_dict) },
    Parser { name: "pickle", run: Reads::Bytes(weights::read_any_pickle) },
    Parser { name: "dumps", run: Reads::Bytes(dumps) },
    Parser { name: "checkpoint", run: Reads::Bytes(checkpoint_of) },
];

fn nccl_topology(text: &str) {
    for machine in ["nd-a100-v4", "ncv4", ""] {
        let preset = Preset::named(machine).ok();
        let Ok(read) = NcclTopology::read("fuzz", text, preset.as_ref()) else { continue };
        if read.node.devices <= 16 {
            drop(read.node.topology(2 * read.node.devices, Fabrics::FLAT));
        }
    }
}

fn machine(text: &str) {
    // A name that is a path would make the parser read that file.
    if !Path::new(text).exists() && !text.contains('/') {
        drop(Topology::named(text, 64));
    }
}

fn records(text: &str) {
    if let Ok(records) = Records::parse(text) {
        drop((records.all::<MeasuredCollective>(), records.all::<SimulatedCollective>()));
    }
}

fn faults(text: &str) {
    let link = Link { bandwidth: BytesPerSec(10_000_000_000), latency: Picos::from_micros(2) };
    if let Ok(topology) = Topology::switch(4, link) {
        drop(Faults::parse(text.lines(), &topology));
    }
}

/// The network whose weights and checkpoints are the seeds.
fn model() -> Option<Model<f32>> {
    Model::new(mlp(4, &[3], 2).ok()?, 1).ok()
}

fn weights_of(bytes: &[u8]) {
    if let Some(mut model) = model() {
        drop(weights::take_matching(Path::new("fuzz"), bytes, &mut model));
    }
}

fn state_dict(bytes: &[u8]) {
    if let Some(mut model) = model() {
        drop(weights::take_matching(Path::new("fuzz.pt"), bytes, &mut model));
    }
}

/// What a rank left, by two of the names that choose a reader; and the verdict.
fn dumps(bytes: &[u8]) {
    for name in ["nccl_trace_rank_0", "flight-rank-1"] {
        let mut reading = DumpReader::default();
        if reading.bytes(Path::new(name), 1, bytes).is_ok()
            && let Ok(job) = reading.finish()
        {
            drop(allfold_triage::lines(&job, &allfold_triage::judge(&job)));
        }
    }
}

fn checkpoint_of(bytes: &[u8]) {
    let (config, mut sgd, mut own) = (Config::default(), Sgd::new(0.9, 0.0, false), Vec::new());
    if let Some(mut model) = model() {
        let (model, optimiser, own) = (&mut model, &mut sgd, &mut own);
        let (config, data) = (&config, &checkpoint::TrainedOn::default());
        let into = checkpoint::Restored { config, data, ranks: 1, model, optimiser, own };
        drop(checkpoint::restore(Path::new("fuzz"), bytes, into));
    }
}

/// Runs the parser of this name on bytes that need not be a valid file.
pub fn run(name: &str, bytes: &[u8]) {
    PARSERS.iter().filter(|parser| parser.name == name).for_each(|parser| parser.read(bytes));
}

/// The seeds of a parser, in the order of their names; empty if there is no folder of seeds.
pub fn seeds(parser: &Parser) -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut files = files(&corpus.join(parser.name));
    files.sort();
    files.into_iter().filter_map(|file| std::fs::read(file).ok()).collect()
}

/// The files in a folder and in its subfolders.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
