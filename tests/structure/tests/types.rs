#![allow(missing_docs, clippy::unwrap_used)]
//! Limits on the lines of a type's `impl` blocks, over all files of its crate, and on the fields of a struct.

use allfold_structure::{members, root, rust_files};
use std::collections::BTreeMap;

/// Lines of all `impl` blocks of a type, and fields of a struct.
const LINES: usize = 600;
const FIELDS: usize = 16;

/// Types with more lines, each with the lines that it may have, which only fall, and the reason.
const LONGER: &[(&str, usize, &str)] = &[
    ("collectives/gpu/src/nccl/comm.rs::NcclComm", 896, "each of NCCL's collectives is a method"),
    (
        "collectives/src/communicator/mod.rs::Communicator",
        1100,
        "each collective is a method, blocking and not",
    ),
    (
        "trainer/gpu-passes/src/passes.rs::Passes",
        1547,
        "each kind of layer has a forward and a backward method",
    ),
    ("trainer/src/cuda/worker.rs::GpuWorker", 946, "a `RankEngine` with 30 operations"),
    ("trainer/src/engine/worker.rs::Worker", 1337, "a `RankEngine` with 30 operations"),
];

/// Folders and files whose structs may have more fields, because they are tables of keys: of a configuration, of records, of a command's
/// options.
const TABLES: [&str; 4] = [
    "trainer/config/src/",
    "experiments/report/src/",
    "experiments/src/commands/",
    "collectives/src/flight/record.rs",
];

/// A struct or an `impl` block of a file: its type, and its lines or fields.
struct Found {
    crate_name: String,
    file: String,
    name: String,
    count: usize,
}

/// The source without test modules, which are last in a file.
fn production(text: &str) -> &str {
    let inline = |(at, _): &(usize, &str)| text[*at..].lines().nth(2).is_some_and(|line| line.ends_with('{'));
    text.match_indices("\n#[cfg(test)]\nmod ").find(inline).map_or(text, |(at, _)| &text[..at])
}

/// The name of the type that an `impl` is for.
fn implemented(head: &str) -> String {
    let head = head.split(" where ").next().unwrap_or_default();
    let mut rest = match head.split_once(" for ") {
        Some((_, of)) => of.trim_start(),
        None => head.trim_start_matches("unsafe ").trim_start_matches("impl").trim_start(),
    };
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.char_indices().position(|(at, c)| {
            let arrow = at > 0 && rest.as_bytes()[at - 1] == b'-';
            depth += i32::from(c == '<') - i32::from(c == '>' && !arrow);
            depth == 0
        });
        rest = rest[end.map_or(0, |end| end + 1)..].trim_start();
    }
    let rest = rest.trim_start_matches(['&', '(']).trim_start_matches("mut ").trim_start_matches("dyn ");
    let path: String = rest.chars().take_while(|c| c.is_alphanumeric() || "_:".contains(*c)).collect();
    path.rsplit("::").next().unwrap_or_default().to_string()
}

/// The structs with fields of a file, and its `impl` blocks.
fn found(crate_name: &str, file: &str, text: &str) -> (Vec<Found>, Vec<Found>) {
    let lines: Vec<&str> = production(text).lines().collect();
    let end_of = |from: usize| (from..lines.len()).find(|at| lines[*at].starts_with('}')).unwrap_or(from);
    let (mut structs, mut impls) = (Vec::new(), Vec::new());
    let own = |name: String, count| Found { crate_name: crate_name.into(), file: file.into(), name, count };
    for (at, line) in lines.iter().enumerate() {
        let words = line.split_once("struct ").filter(|(before, _)| {
            before.is_empty() || before.starts_with("pub") && before.ends_with(' ') && !before.contains('"')
        });
        if let Some((_, rest)) = words {
            let name = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let body = if line.ends_with('{') { &lines[at + 1..end_of(at)] } else { &[] };
            let is_field = |line: &&&str| {
                let own = line.strip_prefix("    ").filter(|own| !own.starts_with([' ', '/', '#', '}', ')']));
                own.is_some_and(|own| own.contains(": "))
            };
            structs.push(own(name, body.iter().filter(is_field).count()));
        }
        if line.starts_with("impl") || line.starts_with("unsafe impl") {
            let opens = (at..lines.len()).find(|at| lines[*at].contains('{')).unwrap_or(at);
            let head = lines[at..=opens].join(" ");
            let end = if lines[opens].ends_with('}') { opens } else { end_of(opens + 1) };
            impls.push(own(implemented(head.split('{').next().unwrap_or_default()), end + 1 - at));
        }
    }
    (structs, impls)
}

/// How many first letters two paths have in common.
fn alike(one: &str, other: &str) -> usize {
    one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count()
}

/// All structs, and the lines of all `impl` blocks of each type. A block belongs to the type of its name that is defined nearest.
fn measured() -> (Vec<Found>, BTreeMap<String, usize>) {
    let (mut structs, mut impls) = (Vec::new(), Vec::new());
    for member in members().unwrap() {
        for (name, text) in rust_files(&root().join(&member).join("src")).unwrap() {
            if !name.split('/').any(|part| part == "tests" || part == "tests.rs") {
                let (own, blocks) = found(&member, &name, &text);
                structs.extend(own);
                impls.extend(blocks);
            }
        }
    }
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for block in impls {
        let named = |one: &&Found| one.crate_name == block.crate_name && one.name == block.name;
        let nearest = structs.iter().filter(named).max_by_key(|one| alike(&one.file, &block.file));
        let file = nearest.map_or("", |one| &one.file);
        *lines.entry(format!("{}/src/{file}::{}", block.crate_name, block.name)).or_default() += block.count;
    }
    (structs, lines)
}

/// Compares what is larger than a limit with what may be.
fn check(what: &str, limit: usize, larger: BTreeMap<String, usize>, allowed: &[(&str, usize, &str)]) {
    let mut wrong = Vec::new();
    for (name, count) in &larger {
        match allowed.iter().find(|(own, ..)| own == name) {
            Some((_, most, reason)) if count <= most => println!("{name}: {count} {what}: {reason}"),
            Some((_, most, _)) => wrong.push(format!("{name} has {count} {what}, and may have {most}")),
            None => wrong.push(format!("{name} has {count} {what}: more than {limit}")),
        }
    }
    for (name, most, _) in allowed {
        let count = larger.get(*name).copied().unwrap_or_default();
        if count + 20 < *most {
            wrong.push(format!("{name} has {count} {what}: lower its {most}, or remove it"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_methods_of_a_type_stay_few() {
    let (_, lines) = measured();
    assert!(lines.len() > 800, "{} types: they are not all found", lines.len());
    check("lines", LINES, lines.into_iter().filter(|(_, lines)| *lines > LINES).collect(), LONGER);
}

#[test]
fn the_fields_of_a_struct_stay_few() {
    let (structs, _) = measured();
    assert!(structs.len() > 1_000, "{} structs: they are not all found", structs.len());
    let named = |one: Found| (format!("{}/src/{}::{}", one.crate_name, one.file, one.name), one.count);
    let is_table = |name: &str| TABLES.iter().any(|folder| name.starts_with(folder));
    let wide = structs.into_iter().map(named).filter(|(name, count)| *count > FIELDS && !is_table(name));
    check("fields", FIELDS, wide.collect(), &[]);
}

#[test]
fn blocks_and_fields_are_counted_where_they_are() {
    let text = "pub struct A<F> {\n    /// One.\n    pub a: F,\n    b: u32,\n}\n\nimpl<F: Fn() -> u32> A<F> {\n    fn a(&self) {}\n}\n\n\
                impl Drop\n    for A<u8>\n{\n    fn drop(&mut self) {}\n}\n\nimpl B for super::A<u8> {}\n";
    let (structs, impls) = found("c", "a.rs", text);
    assert_eq!(structs.iter().map(|one| (&*one.name, one.count)).collect::<Vec<_>>(), [("A", 2)]);
    assert_eq!(
        impls.iter().map(|one| (&*one.name, one.count)).collect::<Vec<_>>(),
        [("A", 3), ("A", 5), ("A", 1)]
    );
}
