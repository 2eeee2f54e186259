//! The search for libraries as files.

use std::fs;
use std::path::{Path, PathBuf};

/// The names of the entries of a folder, in order.
pub fn names_in(folder: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    names
}

/// The file that the dynamic linker would load for a library: it looks in LD_LIBRARY_PATH, in the folders of its configuration
/// and in the usual folders.
pub fn library(name: &str) -> Option<PathBuf> {
    let from_environment = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&from_environment).collect();
    for file in names_in("/etc/ld.so.conf.d") {
        let text = fs::read_to_string(Path::new("/etc/ld.so.conf.d").join(file)).unwrap_or_default();
        folders.extend(text.lines().map(str::trim).filter(|l| l.starts_with('/')).map(PathBuf::from));
    }
    let usual = ["/lib64", "/usr/lib64", "/usr/lib", "/lib", "/usr/local/cuda/lib64"];
    folders.extend(usual.map(PathBuf::from));
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    folders.extend(["/lib", "/usr/lib"].map(|root| Path::new(root).join(&triple)));
    folders.into_iter().map(|folder| folder.join(name)).find(|path| path.exists())
}
