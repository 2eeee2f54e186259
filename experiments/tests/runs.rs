//! Published runs of six systems, read as they are.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_validation::runs;
use std::path::Path;

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/runs")
}

#[test]
fn every_published_run_is_read_whole_and_names_its_source() {
    let mut files: Vec<_> = std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 6);
    for file in files {
        let read = runs::read(&file, None).unwrap().runs;
        let [run] = &*read else { panic!("{}: {} runs", file.display(), read.len()) };
        assert!(run.source.as_deref().unwrap().starts_with("https://"), "{}", run.name);
        assert!(run.left_out.is_empty(), "{}: {:?}", run.name, run.left_out);
        let hardware = run.hardware.as_ref().unwrap();
        assert_eq!(hardware.gpus_per_node.unwrap() * hardware.nodes.unwrap(), run.ranks, "{}", run.name);
    }
}

#[test]
fn a_file_that_is_none_is_named() {
    let said = runs::read(&folder().join("nowhere.json"), None).unwrap_err().to_string();
    assert!(said.contains("nowhere.json: "), "{said}");
}
