#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! Within a crate files use each other in one direction only.

mod imports;

use std::collections::{BTreeMap, BTreeSet};

use allfold_structure::{members, root, rust_files};
use imports::{Crate, File};

/// Tests may use everything: no circle goes through them.
fn is_test(name: &str) -> bool {
    name.ends_with("tests.rs") || name.contains("tests/")
}

/// Groups of files that use each other in a circle, each as lines `file -> file: name`.
fn circles(files: &[(String, String)]) -> Vec<Vec<String>> {
    let files: Vec<File> =
        files.iter().filter(|(name, _)| !is_test(name)).map(|(name, text)| File::read(name, text)).collect();
    let krate = Crate::new(files);
    let uses: Vec<BTreeMap<usize, String>> = (0..krate.files.len()).map(|index| krate.uses(index)).collect();
    let reached: Vec<BTreeSet<usize>> = (0..uses.len())
        .map(|start| {
            let mut seen = BTreeSet::new();
            let mut next: Vec<usize> = uses[start].keys().copied().collect();
            while let Some(file) = next.pop() {
                if seen.insert(file) {
                    next.extend(uses[file].keys());
                }
            }
            seen
        })
        .collect();
    let together = |a: usize, b: usize| reached[a].contains(&b) && reached[b].contains(&a);
    let mut found = Vec::new();
    for first in (0..uses.len()).filter(|&file| reached[file].contains(&file)) {
        if (0..first).any(|earlier| together(earlier, first)) {
            continue;
        }
        let mut lines = Vec::new();
        for from in (0..uses.len()).filter(|&from| together(first, from)) {
            for (to, name) in uses[from].iter().filter(|(to, _)| together(first, **to)) {
                lines.push(format!("{} -> {}: {name}", krate.files[from].name, krate.files[*to].name));
            }
        }
        found.push(lines);
    }
    found
}

#[test]
fn files_use_each_other_in_one_direction() {
    let mut report = String::new();
    let members = members().unwrap();
    assert!(members.len() >= 12, "{members:?}");
    for member in members {
        for circle in circles(&rust_files(&root().join(&member).join("src")).unwrap()) {
            report.push_str(&format!("{member}: a circle\n    {}\n", circle.join("\n    ")));
        }
    }
    assert!(report.is_empty(), "files that use each other in a circle:\n{report}");
}

/// The uses that the reader of imports must find, each as a crate with one circle or none.
#[test]
fn circles_are_seen_where_they_are() {
    let count = |files: &[(&str, &str)]| {
        let files: Vec<(String, String)> =
            files.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
        circles(&files).len()
    };
    let both = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "use super::a::A; struct B;"),
    ];
    assert_eq!(count(&both), 1, "two files");
    let paths = [("a.rs", "pub fn a() { crate::b::b() }"), ("b.rs", "use crate::a; fn b() { a::a() }")];
    assert_eq!(count(&paths), 1, "paths in expressions");
    let through = [
        ("m/mod.rs", "mod a; mod b; pub use a::A; pub use b::B;"),
        ("m/a.rs", "use super::B; struct A;"),
        ("m/b.rs", "use crate::m::A; struct B;"),
    ];
    assert_eq!(count(&through), 1, "by re-exports");
    let parent =
        [("m/mod.rs", "mod a; use a::A; pub struct M(A);"), ("m/a.rs", "use super::M; pub struct A;")];
    assert_eq!(count(&parent), 0, "a file that uses what its folder defines");
    let folders = [
        ("m/mod.rs", "mod a; pub struct M(a::A);"),
        ("m/a.rs", "use crate::b::B; struct A;"),
        ("b.rs", "use crate::m::M; struct B;"),
    ];
    assert_eq!(count(&folders), 1, "between folders");
    let glob = [
        ("a.rs", "use crate::b::*; pub struct A; fn f(_: B) {}"),
        ("b.rs", "use crate::a::A; pub struct B;"),
    ];
    assert_eq!(count(&glob), 1, "every name of a module");
    let facade = [
        ("m/mod.rs", "mod a; mod b; pub use a::A;"),
        ("m/a.rs", "pub struct A;"),
        ("m/b.rs", "use super::A;"),
    ];
    assert_eq!(count(&facade), 0, "a re-export is no use");
    let words = [
        ("a.rs", "// use crate::b::B;\nconst A: &str = \"crate::b::B\";"),
        ("b.rs", "use crate::a::A; struct B;"),
    ];
    assert_eq!(count(&words), 0, "comments and strings");
    let tests = [
        ("a.rs", "struct A;\n#[cfg(test)]\nmod tests {\n use crate::b::B; }"),
        ("b.rs", "use crate::a::A; struct B;"),
    ];
    assert_eq!(count(&tests), 0, "tests");
}
