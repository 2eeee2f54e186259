//! The project's sources, as the tests of its structure read them.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The workspace's folder.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folders of the workspace's crates, as its manifest names them.
///
/// # Errors
/// The manifest cannot be read.
pub fn members() -> io::Result<Vec<String>> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let members = manifest.split_once("\nmembers = [").and_then(|(_, rest)| rest.split_once(']'));
    Ok(members.map_or("", |(members, _)| members).split('"').skip(1).step_by(2).map(String::from).collect())
}

/// Every Rust file below a folder, as (path from the folder, text), in order of paths.
///
/// # Errors
/// A folder or file cannot be read.
pub fn rust_files(folder: &Path) -> io::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
                found.push((name, fs::read_to_string(&path)?));
            }
        }
    }
    found.sort();
    Ok(found)
}
