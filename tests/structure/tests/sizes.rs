#![allow(missing_docs, clippy::unwrap_used)]
//! Limits on the lines of files and crates. Functions are held to 70 lines by clippy (`clippy.toml`).

use allfold_structure::{members, root, rust_files};

/// Lines of a crate's `src`.
const CRATE: usize = 20_000;
/// Lines of any file, tests included.
const FILE: usize = 500;
/// Lines of a file of a strategy, and of all files on the way of data-parallel training from `train` to the communicator.
const STRATEGY: usize = 400;
const DATA_PARALLEL: usize = 1_500;
/// The most lines that half of the files in `src` have, and nine in ten.
const MEDIAN: usize = 140;
const NINE_IN_TEN: usize = 330;

#[test]
fn files_and_crates_stay_small() {
    let mut every = Vec::new();
    let mut wrong = Vec::new();
    for member in members().unwrap() {
        let files = rust_files(&root().join(&member).join("src")).unwrap();
        let lines = |text: &str| text.lines().count();
        let whole: usize = files.iter().map(|(_, text)| lines(text)).sum();
        if whole > CRATE {
            wrong.push(format!("{member}/src has {whole} lines: more than {CRATE}"));
        }
        every.extend(files.iter().map(|(_, text)| lines(text)));
        for folder in ["src", "tests", "benches", "examples"] {
            let path = root().join(&member).join(folder);
            let files = if path.is_dir() { rust_files(&path).unwrap() } else { Vec::new() };
            for (name, text) in files.iter().filter(|(_, text)| lines(text) > FILE) {
                wrong.push(format!("{member}/{folder}/{name} has {} lines: more than {FILE}", lines(text)));
            }
        }
    }
    every.sort_unstable();
    let (median, ninth) = (every[every.len() / 2], every[every.len() * 9 / 10]);
    println!("{} files of src: median {median} lines, nine in ten below {ninth}", every.len());
    if median > MEDIAN || ninth > NINE_IN_TEN {
        wrong.push(format!("half of all files have up to {median} lines and nine in ten up to {ninth}: {MEDIAN} and {NINE_IN_TEN} are right"));
    }
    assert!(wrong.is_empty(), "too large:\n{}", wrong.join("\n"));
}

/// Lines of production code: neither blank nor a comment, in a folder `src`, outside of tests. The number only falls, except by what a
/// change is granted.
const PRODUCTION: usize = 112_720;

#[test]
fn production_code_does_not_grow() {
    let mut lines = 0;
    for member in members().unwrap() {
        let files = rust_files(&root().join(&member).join("src")).unwrap();
        let aside = tests(&files);
        lines += files
            .iter()
            .filter(|(name, _)| !aside.iter().any(|tests| name.starts_with(tests.as_str())))
            .map(|(_, text)| production(text))
            .sum::<usize>();
    }
    println!("{lines} lines of production code");
    assert!(lines <= PRODUCTION, "{lines} lines of production code: more than {PRODUCTION}");
    assert!(lines + 500 > PRODUCTION, "lower the limit of {PRODUCTION} lines of production code to {lines}");
}

/// The beginnings of the paths of modules that are compiled for tests alone: `#[cfg(test)]`, or `all` of it and more, before `mod NAME;`.
fn tests(files: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files {
        let (folder, file) =
            path.rsplit_once('/').map_or(("", path.as_str()), |(folder, file)| (folder, file));
        let own = if ["mod.rs", "lib.rs", "main.rs"].contains(&file) {
            folder
        } else {
            path.trim_end_matches(".rs")
        };
        let beginning = if own.is_empty() { String::new() } else { format!("{own}/") };
        for (condition, declared) in text.lines().zip(text.lines().skip(1)) {
            let alone = condition == "#[cfg(test)]" || condition.starts_with("#[cfg(all(test, ");
            let name = declared.strip_prefix("mod ").and_then(|name| name.strip_suffix(';'));
            if let Some(name) = name.filter(|_| alone) {
                found.extend([format!("{beginning}{name}.rs"), format!("{beginning}{name}/")]);
            }
        }
    }
    found
}

/// The lines of a file that count, without its module of tests at the end. A line that declares such a module is followed by code.
fn production(text: &str) -> usize {
    let mut parts = text.split("\n#[cfg(test)]\nmod ");
    let first = parts.next().unwrap_or_default();
    let declared = parts.filter_map(|part| part.split_once('\n').filter(|(line, _)| line.ends_with(';')));
    let own = [first].into_iter().chain(declared.map(|(_, rest)| rest));
    own.flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

#[test]
fn a_strategy_is_read_in_one_sitting() {
    let files = rust_files(&root().join("trainer/src/strategies")).unwrap();
    assert!(files.len() >= 12, "{} files of strategies: they are not all found", files.len());
    for (name, text) in files {
        let lines = text.lines().count();
        assert!(lines < STRATEGY, "strategies/{name} has {lines} lines: {STRATEGY} and more are too many");
    }
}

/// CONTRIBUTING names the files on the way from `train` to the communicator.
#[test]
fn the_way_of_data_parallel_training_is_short() {
    let text = std::fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let entry =
        text.split("\n\n").find(|entry| entry.starts_with("**Data-parallel training on the CPU**")).unwrap();
    let files: Vec<&str> = entry.split('`').skip(1).step_by(2).filter(|word| word.ends_with(".rs")).collect();
    assert!(files.len() >= 8, "{files:?}");
    let lines = |file: &&str| {
        let path = if file.starts_with("trainer/") {
            root().join(file)
        } else {
            root().join("trainer/src").join(file)
        };
        std::fs::read_to_string(path).unwrap().lines().count()
    };
    let all: usize = files.iter().map(lines).sum();
    println!("{all} lines in {} files", files.len());
    assert!(all < DATA_PARALLEL, "{all} lines: {DATA_PARALLEL} and more are too many");
}
