//! Every parser of text from outside, as one function each, for the fuzzers and for the mutations that CI runs.
//!
//! Each may refuse its text; none may panic, hang or allocate by what the text claims.

use allfold_collectives::schedule::Table;
use allfold_experiments::scaling::tables as scaling_tables;
use allfold_sim::Topology;
use allfold_sim::files::{NcclGraphs, NcclTopology};
use allfold_sim::machines::node::Fabrics;
use allfold_sim::machines::presets::Preset;
use allfold_validation::file::File;
use allfold_validation::runs;
use std::path::{Path, PathBuf};

/// A parser: its name, which is also its folder of seeds in `fuzz/corpus`, and what it does with a text.
pub struct Parser {
    /// As the fuzz target is called.
    pub name: &'static str,
    /// Reads the text and drops what came of it.
    pub run: fn(&str),
}

/// All of them.
pub const PARSERS: [Parser; 9] = [
    Parser { name: "nccl_topology", run: nccl_topology },
    Parser { name: "nccl_graph", run: |text| drop(NcclGraphs::read("fuzz", text)) },
    Parser { name: "astra_network", run: |text| drop(Topology::from_astra("fuzz", text, 16)) },
    Parser { name: "topology_toml", run: |text| drop(Topology::from_toml("fuzz", text, 4)) },
    Parser { name: "msccl", run: |text| drop(Table::from_msccl(text)) },
    Parser { name: "nccl_tests", run: |text| drop(runs::parse("all_reduce", text)) },
    Parser { name: "machine", run: machine },
    Parser { name: "scaling_table", run: |text| drop(scaling_tables::parse("fuzz", text)) },
    Parser { name: "parameters", run: |text| drop(File::parse(text).map(|file| file.parameters())) },
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
    // A name that leads to a file would read whatever lies there.
    if !Path::new(text).exists() && !text.contains('/') {
        drop(Topology::named(text, 64));
    }
}

/// Runs one parser on bytes that may be no text.
pub fn run(name: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    PARSERS.iter().filter(|parser| parser.name == name).for_each(|parser| (parser.run)(&text));
}

/// The seeds of a parser, in the order of their names. Empty where the sources are not there.
pub fn seeds(parser: &Parser) -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let mut files = files(&corpus.join(parser.name));
    files.sort();
    files.into_iter().filter_map(|file| std::fs::read(file).ok()).collect()
}

/// The files in a folder and in the folders there.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
