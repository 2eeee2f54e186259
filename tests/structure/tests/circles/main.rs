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

/// What counts as one end of a use.
#[derive(Clone, Copy, PartialEq)]
enum Ends {
    /// A file. Files of a folder may use what its `mod.rs` defines.
    Files,
    /// A file, `mod.rs` as any other.
    FilesAndParents,
    /// All files of a module below the crate's root together.
    Folders,
}

/// A group of files or folders that use each other in a circle.
struct Circle {
    members: BTreeSet<String>,
    /// The uses between them, each as `file -> file: name`.
    uses: Vec<String>,
}

/// The circles of a crate's files.
fn circles(files: &[(String, String)], ends: Ends) -> Vec<Circle> {
    let files: Vec<File> =
        files.iter().filter(|(name, _)| !is_test(name)).map(|(name, text)| File::read(name, text)).collect();
    let krate = Crate::new(files);
    let end = |index: usize| {
        let file = &krate.files[index];
        match (ends, file.folder()) {
            (Ends::Folders, folder) => folder.map(String::from),
            _ => Some(file.name.clone()),
        }
    };
    let mut uses: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for (index, from) in (0..krate.files.len()).filter_map(|index| Some((index, end(index)?))) {
        for (other, name) in krate.uses(index, ends == Ends::FilesAndParents) {
            let line = format!("{} -> {}: {name}", krate.files[index].name, krate.files[other].name);
            if let Some(to) = end(other).filter(|to| ends != Ends::Folders || *to != from) {
                uses.entry(from.clone()).or_default().entry(to).or_insert(line);
            }
        }
    }
    let reached = |start: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(of) = next.pop() {
            next.extend(
                uses.get(of).into_iter().flat_map(BTreeMap::keys).filter(|to| seen.insert((*to).clone())),
            );
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        uses.keys().map(|from| (from, reached(from))).collect();
    let mut found: Vec<Circle> = Vec::new();
    for first in uses.keys().filter(|from| reached[from].contains(*from)) {
        if found.iter().any(|circle| circle.members.contains(first)) {
            continue;
        }
        let back = |other: &&String| reached.get(other).is_some_and(|reached| reached.contains(first));
        let members: BTreeSet<String> = reached[first].iter().filter(back).cloned().collect();
        let between = members.iter().flat_map(|from| uses[from].iter());
        let uses = between.filter(|(to, _)| members.contains(*to)).map(|(_, line)| line.clone()).collect();
        found.push(Circle { members, uses });
    }
    found
}

/// The circles of all crates, except those that have a member that `known` names, as (crate, member). A name in `known` without a circle
/// is reported too.
fn report(ends: Ends, known: &[(&str, &str)]) -> String {
    let (mut report, mut seen) = (String::new(), BTreeSet::new());
    let crates = members().unwrap();
    assert!(crates.len() >= 12, "{crates:?}");
    for krate in crates {
        for circle in circles(&rust_files(&root().join(&krate).join("src")).unwrap(), ends) {
            let is = |(of, member): &&(&str, &str)| *of == krate && circle.members.contains(*member);
            match known.iter().find(is) {
                Some(known) => drop(seen.insert(*known)),
                None => report.push_str(&format!("{krate}: a circle\n    {}\n", circle.uses.join("\n    "))),
            }
        }
    }
    for (krate, member) in known.iter().filter(|known| !seen.contains(*known)) {
        report.push_str(&format!("{krate}: {member} is in no circle: remove it from the list\n"));
    }
    report
}

#[test]
fn files_use_each_other_in_one_direction() {
    let report = report(Ends::Files, &[]);
    assert!(report.is_empty(), "files that use each other in a circle:\n{report}");
}

/// Circles through a folder's `mod.rs`. The list only gets shorter.
const THROUGH_PARENTS: &[(&str, &str)] = &[
    // A type of the folder's own has its methods in the folder's files.
    ("trainer", "run.rs"),
    ("trainer/prediction", "clock/mod.rs"),
    ("experiments", "commands/train.rs"),
    ("experiments/triage", "read/mod.rs"),
    // A trait's default needs an implementation, or the way in needs its parts, which need its types.
    ("collectives/schedules", "schedule/mod.rs"),
    ("kernels", "nn/gemm/mod.rs"),
    ("kernels/cuda", "vendor/mod.rs"),
    ("trainer", "checkpoint.rs"),
    ("trainer", "strategies/hooks/mod.rs"),
    ("trainer/datasets", "lib.rs"),
    ("trainer/networks", "network.rs"),
    ("trainer/prediction", "lib.rs"),
];

#[test]
fn a_folder_and_its_files_use_each_other_in_one_direction() {
    let report = report(Ends::FilesAndParents, THROUGH_PARENTS);
    assert!(report.is_empty(), "files that use each other in a circle through their parent:\n{report}");
}

/// Circles between modules below a crate's root. The list only gets shorter.
const BETWEEN_FOLDERS: &[(&str, &str)] = &[
    ("collectives", "communicator"),
    ("collectives", "contract"),
    ("experiments", "training"),
    ("kernels", "reduce"),
    // A topology file describes its GPU by a row of the machines' table, and a machine becomes a topology.
    ("sim", "machines"),
    ("trainer", "engine"),
    ("trainer/datasets", "pictures"),
];

#[test]
fn folders_use_each_other_in_one_direction() {
    let report = report(Ends::Folders, BETWEEN_FOLDERS);
    assert!(report.is_empty(), "folders that use each other in a circle:\n{report}");
}

/// The uses that the reader of imports must find, each as a crate with one circle or none.
#[test]
fn circles_are_seen_where_they_are() {
    let of = |files: &[(&str, &str)], ends| {
        let files: Vec<(String, String)> =
            files.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
        circles(&files, ends).len()
    };
    let count = |files: &[(&str, &str)]| of(files, Ends::Files);
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
    assert_eq!(of(&parent, Ends::FilesAndParents), 1, "through the parent");
    let modules =
        [("m/mod.rs", "mod a; pub use a::a; pub struct M;"), ("m/a.rs", "use super::M; pub fn a() {}")];
    assert_eq!(of(&modules, Ends::FilesAndParents), 0, "a module and a function with one name");
    let method = [
        ("m/mod.rs", "mod a; pub use a::a; pub struct M; impl M { pub fn a() {} }"),
        ("m/a.rs", "use super::M; pub fn a() {}"),
    ];
    assert_eq!(of(&method, Ends::FilesAndParents), 0, "a function and a method with one name");
    let folders = [
        ("m/mod.rs", "mod a; pub struct M(a::A);"),
        ("m/a.rs", "use crate::b::B; struct A;"),
        ("b.rs", "use crate::m::M; struct B;"),
    ];
    assert_eq!(count(&folders), 1, "between folders");
    let apart = [
        ("m/a.rs", "use crate::n::a::A; struct M;"),
        ("m/b.rs", "pub struct B;"),
        ("n/a.rs", "pub struct A;"),
        ("n/b.rs", "use crate::m::b::B;"),
    ];
    assert_eq!((count(&apart), of(&apart, Ends::Folders)), (0, 1), "between other files of two folders");
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
