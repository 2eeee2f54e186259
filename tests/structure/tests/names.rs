#![allow(missing_docs, clippy::unwrap_used)]
//! One name, one thing: no two public types of the workspace have the same name.
//!
//! A type is public if its module is public, from the crate's root down, or if a public module re-exports the module or the type.

use allfold_structure::{members, root, rust_files};
use std::collections::{BTreeMap, BTreeSet};

/// By Rust's convention every crate may have one of each.
const PER_CRATE: [&str; 2] = ["Error", "Result"];

/// Source files of one crate by their path below `src`.
type Files = BTreeMap<String, String>;

/// The file of a module that a file declares.
fn declared(files: &Files, file: &str, module: &str) -> Option<String> {
    let folder = match file {
        "lib.rs" => String::new(),
        _ => format!("{}/", file.strip_suffix("/mod.rs").or_else(|| file.strip_suffix(".rs"))?),
    };
    let names = [format!("{folder}{module}.rs"), format!("{folder}{module}/mod.rs")];
    names.into_iter().find(|name| files.contains_key(name))
}

/// Every `pub use` of a file, without the keywords and the semicolon. Those within an inline module count as the file's own.
fn re_export_statements(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("pub use ").filter_map(move |(at, keywords)| {
        let before = text[..at].rsplit('\n').next()?;
        before.trim().is_empty().then(|| text[at + keywords.len()..].split(';').next())?
    })
}

/// The paths that a `pub use` names: `a::{b, c::d}` are a::b and a::c::d, and `a::*` is a.
fn paths(statement: &str) -> Vec<Vec<&str>> {
    let (prefix, list) = statement.split_once('{').unwrap_or(("", statement));
    let list = list.trim_end().trim_end_matches('}').split(',');
    let words = |path: &'_ str| path.split("::").map(str::trim).filter(|word| !word.is_empty()).count();
    let names = list.filter(|name| words(name) > 0).map(|name| name.split(" as ").next().unwrap_or(name));
    names
        .map(|name| {
            let all = prefix.split("::").chain(name.split("::")).map(str::trim);
            all.filter(|word| !["", "*", "self"].contains(word)).collect()
        })
        .collect()
}

/// The files of modules that a file re-exports.
fn re_exported_modules(files: &Files, file: &str) -> Vec<String> {
    let walk = |path: Vec<&str>| {
        let (from, path) = match path.split_first() {
            Some((&"crate", rest)) => ("lib.rs", rest.to_vec()),
            _ => (file, path),
        };
        path.iter().try_fold(from.to_string(), |at, module| declared(files, &at, module))
    };
    let text = files.get(file).map_or("", String::as_str);
    re_export_statements(text).flat_map(paths).filter_map(walk).collect()
}

/// Files whose modules are public: declared by `pub mod` or re-exported by `pub use`, from the root down.
fn public_files(files: &Files) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), vec!["lib.rs".to_string()]);
    while let Some(file) = open.pop() {
        let modules = files.get(&file).into_iter().flat_map(|text| text.lines());
        let modules = modules.filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
        let named = modules.filter_map(|module| declared(files, &file, module));
        let named: Vec<String> = named.chain(re_exported_modules(files, &file)).collect();
        if found.insert(file) {
            open.extend(named);
        }
    }
    found
}

/// The public types that a file defines at its top level.
fn types(text: &str) -> impl Iterator<Item = &str> {
    let keywords = ["pub struct ", "pub enum ", "pub trait ", "pub unsafe trait ", "pub type ", "pub union "];
    text.lines().filter_map(move |line| {
        let rest = keywords.iter().find_map(|keyword| line.strip_prefix(keyword))?;
        rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    })
}

/// The types that a file re-exports by name, each with the modules on the way.
fn re_exports(text: &str) -> Vec<(String, BTreeSet<String>)> {
    let mut found = Vec::new();
    for statement in re_export_statements(text) {
        let words =
            statement.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        let (types, modules): (Vec<&str>, Vec<&str>) =
            words.partition(|word| word.starts_with(|c: char| c.is_ascii_uppercase()));
        let modules: BTreeSet<String> = modules.into_iter().map(String::from).collect();
        found.extend(types.into_iter().map(|name| (name.to_string(), modules.clone())));
    }
    found
}

/// The public types of a crate, each with the file that defines it.
fn public_types(files: &Files) -> BTreeSet<(String, String)> {
    let public = public_files(files);
    let mut found = BTreeSet::new();
    for file in &public {
        found.extend(types(&files[file]).map(|name| (name.to_string(), file.clone())));
        for (name, modules) in re_exports(&files[file]) {
            let defines = |(_, text): &(&String, &String)| types(text).any(|other| other == name);
            let on_the_way =
                |path: &str| path.trim_end_matches(".rs").split('/').any(|part| modules.contains(part));
            let definitions = files.iter().filter(defines).filter(|(path, _)| on_the_way(path));
            found.extend(definitions.map(|(path, _)| (name.clone(), path.clone())));
        }
    }
    found
}

#[test]
fn no_public_type_name_means_two_things() {
    let mut by_name: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for member in members().unwrap() {
        let files: Files = rust_files(&root().join(&member).join("src")).unwrap().into_iter().collect();
        for (name, file) in public_types(&files) {
            by_name.entry(name).or_default().insert(format!("{member}/src/{file}"));
        }
    }
    let all = by_name.len();
    by_name.retain(|name, files| files.len() > 1 && !PER_CRATE.contains(&name.as_str()));
    let list: Vec<String> = by_name
        .iter()
        .map(|(name, files)| format!("{name}: {}", files.iter().cloned().collect::<Vec<_>>().join(", ")))
        .collect();
    println!("{all} names of public types; {} of them mean two things", list.len());
    assert!(all > 400, "{all} public types: they are not all found");
    assert!(list.is_empty(), "give one of each another name:\n{}", list.join("\n"));
}

#[test]
fn a_name_that_means_two_things_is_found() {
    let file = |name: &str, text: &str| (name.to_string(), text.to_string());
    let files: Files = [
        file("lib.rs", "pub mod open;\nmod shut;\nmod third;\npub use shut::{Named, other};\n"),
        file("open/mod.rs", "pub mod within;\npub struct Named(u32);\nstruct Private;\n"),
        file("open/within.rs", "pub enum Deep {}\npub(crate) struct Inner;\n"),
        file("shut.rs", "pub struct Named<T>(T);\npub struct Kept;\n"),
        file("third.rs", "pub struct Named;\n"),
    ]
    .into_iter()
    .collect();
    let found: Vec<String> =
        public_types(&files).into_iter().map(|(name, file)| format!("{name} {file}")).collect();
    assert_eq!(found, ["Deep open/within.rs", "Named open/mod.rs", "Named shut.rs"]);
}

#[test]
fn re_exported_modules_and_indented_re_exports_are_followed() {
    let file = |name: &str, text: &str| (name.to_string(), text.to_string());
    let files: Files = [
        file(
            "lib.rs",
            "mod inner;\nmod shut;\npub use inner::{\n    first,\n    second::deep,\n};\npub use std::fmt;\n",
        ),
        file("inner/mod.rs", "pub mod first;\npub mod second;\npub struct Hidden;\n"),
        file(
            "inner/first.rs",
            "mod own;\nmod tests {\n    pub use super::own::Indented;\n}\npub struct First;\n",
        ),
        file("inner/first/own.rs", "pub struct Indented;\npub struct Kept;\n"),
        file("inner/second.rs", "pub mod deep;\npub struct Second;\n"),
        file("inner/second/deep.rs", "pub use crate::shut::*;\npub enum Deep {}\n"),
        file("shut.rs", "pub struct Global;\n"),
    ]
    .into_iter()
    .collect();
    let found: Vec<String> =
        public_types(&files).into_iter().map(|(name, file)| format!("{name} {file}")).collect();
    assert_eq!(
        found,
        [
            "Deep inner/second/deep.rs",
            "First inner/first.rs",
            "Global shut.rs",
            "Indented inner/first/own.rs"
        ]
    );
}
