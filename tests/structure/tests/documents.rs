#![allow(missing_docs, clippy::unwrap_used)]
//! Everything that documents name exists: files that they link to, paths between backticks, and the tests that SECURITY.md names.

use allfold_structure::root;
use std::path::{Path, PathBuf};

/// Folders that are not searched: documents name no file in them.
const SKIPPED: [&str; 3] = [".git", "target", "corpus"];

/// Every file below a folder.
fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        match path.is_dir() {
            true if SKIPPED.iter().any(|skipped| name == *skipped) => {}
            true => files(&path, into),
            false => into.push(path),
        }
    }
}

/// The files that a document links to.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let local = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    local.map(|target| target.split('#').next().unwrap_or_default())
}

/// Paths between backticks: words with a slash, and names of Rust files. Units are no paths. Patterns, folders that are yet to be made
/// and files of other projects are left out.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let allowed = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let other = ["NAME", "COMMIT", "docs/results/gpu", "src/graph/tuning.cc", "sklearn/"];
    quoted.filter(move |word| {
        let path = (word.contains('/') || word.ends_with(".rs"))
            && word.chars().all(allowed)
            && !word.starts_with(['/', '-']);
        let unit = ["b/s", "B/s", "bit/s"].iter().any(|unit| word.ends_with(unit));
        path && !unit && !word.starts_with("target/") && !other.iter().any(|part| word.contains(part))
    })
}

#[test]
fn every_file_that_a_document_names_is_there() {
    let (root, mut all) = (root(), Vec::new());
    files(&root, &mut all);
    let there = |document: &Path, path: &str| {
        let path = path.trim_end_matches('/');
        let near = document.parent().unwrap().join(path).exists() || root.join(path).exists();
        // A shortened path: the end of a file's, or a folder on the way to one.
        let part = |file: &PathBuf| {
            let file = file.to_str().unwrap();
            file.ends_with(&format!("/{path}")) || file.contains(&format!("/{path}/"))
        };
        near || all.iter().any(part)
    };
    let (mut missing, mut named) = (Vec::new(), 0);
    for document in all.iter().filter(|file| file.extension().is_some_and(|extension| extension == "md")) {
        let text = std::fs::read_to_string(document).unwrap();
        for path in links(&text).chain(paths(&text)) {
            named += 1;
            if !there(document, path) {
                missing.push(format!("{}: {path}", document.display()));
            }
        }
    }
    assert!(named > 150, "only {named} paths were found in the documents");
    assert!(missing.is_empty(), "named and not there:\n{}", missing.join("\n"));
}

/// SECURITY.md names tests as `file::test`, where the file may be a folder of files.
#[test]
fn every_test_that_security_names_is_there() {
    let (root, mut all) = (root(), Vec::new());
    files(&root, &mut all);
    let text = std::fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let quoted = text.split('`').skip(1).step_by(2);
    let named: Vec<(&str, &str)> =
        quoted.filter_map(|word| word.split_once("::")).filter(|(place, _)| *place != "file").collect();
    assert!(named.len() > 20, "only {} tests were found", named.len());
    for (place, test) in named {
        let there = all.iter().any(|file| {
            let rust = file.extension().is_some_and(|extension| extension == "rs");
            let within = file.with_extension("").iter().any(|part| part == place);
            rust && within && std::fs::read_to_string(file).unwrap().contains(&format!("fn {test}("))
        });
        assert!(there, "SECURITY.md names `{place}::{test}`, and no such test is there");
    }
}

/// The page of defects names tests as `path::test`.
#[test]
fn every_test_that_the_page_of_defects_names_is_there() {
    let root = root();
    let text = std::fs::read_to_string(root.join("docs/results/defects.md")).unwrap();
    let quoted = text.split('`').skip(1).step_by(2);
    let named: Vec<(&str, &str)> =
        quoted.filter_map(|word| word.split_once("::")).filter(|(path, _)| path.ends_with(".rs")).collect();
    assert!(named.len() > 60, "only {} tests were found", named.len());
    for (path, test) in named {
        let file = std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(file.contains(&format!("fn {test}(")), "`{path}::{test}` is not there");
    }
}

#[test]
fn paths_and_links_are_found_where_they_are() {
    let text = "see [a](b/c.md#d) and [e](https://f/g), `h/i.rs`, `400Gb/s`, `--j/k`, `l/NAME.rs`, `m` and `o.rs`\n`n/`";
    assert_eq!(links(text).collect::<Vec<_>>(), ["b/c.md"]);
    assert_eq!(paths(text).collect::<Vec<_>>(), ["h/i.rs", "o.rs", "n/"]);
}

/// The manifest in `docs/own-algorithm.md` names every dependency of the example, each by the path that the workspace has.
#[test]
fn the_manifest_of_an_own_algorithm_has_the_examples_dependencies() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let (page, example, workspace) =
        (read("docs/own-algorithm.md"), read("examples/own-algorithm/Cargo.toml"), read("Cargo.toml"));
    let named = example.lines().filter_map(|line| line.split_once(" = { workspace = true"));
    let mut count = 0;
    for (name, _) in named {
        let start = format!("{name} = {{ path = ");
        let line = workspace.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
        let path = line.split('"').nth(1).unwrap();
        let wanted = format!("{start}\"ALLFOLD/{path}\"");
        assert!(page.lines().any(|line| line.starts_with(&wanted)), "the page lacks {wanted}");
        count += 1;
    }
    assert!(count >= 4, "{count} dependencies of the example: they are not all found");
}
