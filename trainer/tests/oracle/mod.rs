//! The files with PyTorch's results: `fixtures/oracle`, or the directory that `ALLFOLD_ORACLE` names.

use std::path::{Path, PathBuf};

/// The folder of the parity files.
pub fn directory() -> PathBuf {
    match std::env::var_os("ALLFOLD_ORACLE") {
        Some(directory) => directory.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/oracle"),
    }
}

/// Checks how many cases a test has compared: `shipped` of the files that ship, or at least one of other files.
pub fn counted(held: usize, shipped: usize) {
    match std::env::var_os("ALLFOLD_ORACLE") {
        Some(_) => assert!(held > 0, "there are no such cases"),
        None => assert_eq!(held, shipped),
    }
}

/// A file's bytes.
pub fn bytes(name: &str) -> Vec<u8> {
    let path = directory().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A JSON file. Python writes NaN, which JSON does not have, into some files; it is read as null.
pub fn json<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let text = String::from_utf8(bytes(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_str(&text.replace(": NaN", ": null")).unwrap_or_else(|error| panic!("{name}: {error}"))
}
