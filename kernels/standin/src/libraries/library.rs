//! Builds libraries with the names of NVIDIA's, loads them by path, and points their functions at tables.

use super::entry::Entry;
use allfold_cuda::{Error, Result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::c_void;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("../../native/standin.cc");

fn failed(why: &dyn std::fmt::Display) -> Error {
    let log = why.to_string().lines().take(6).collect::<Vec<_>>().join(" | ");
    Error::Compile { file: "standin.cc", target: "the stand-in driver".into(), log }
}

/// Loads a library with these functions under each of `names`. The dynamic linker identifies a loaded library by its SONAME, so a later
/// load by one of the names finds this library.
pub(super) fn install(names: &[&str], tables: &[&[Entry]]) -> Result<()> {
    for name in names {
        let path = build(name, tables)?;
        // SAFETY: the library is Allfold's own and has no initialisers; it is never unloaded.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
        let library = Box::leak(Box::new(library.map_err(|error| failed(&error))?));
        for entry in tables.iter().copied().flatten() {
            // SAFETY: standin.cc defines a slot of this type for every entry, and no code calls the function before its slot is
            // set.
            unsafe {
                let slot = library.get::<*mut *const c_void>(format!("slot_{}", entry.name).as_bytes());
                **slot.map_err(|error| failed(&error))? = entry.at.cast();
            }
        }
        if name.starts_with("libcuda.so") {
            super::range::adopt(library)?;
        }
    }
    Ok(())
}

/// The path of the library with this name and these functions, compiled if it does not exist yet.
fn build(name: &str, tables: &[&[Entry]]) -> Result<PathBuf> {
    let mut entries = String::new();
    for entry in tables.iter().copied().flatten() {
        let _ = writeln!(entries, "ENTRY({})", entry.name);
    }
    #[allow(
        deprecated,
        reason = "stable between runs, which the default hasher does not promise and this one does"
    )]
    let mut hash = std::hash::SipHasher::new();
    (SOURCE, &entries).hash(&mut hash);
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    // Every version of the library has its own folder; two processes may build at the same time, and the last one writes equal bytes.
    let folder = target.join(format!("standin-{:016x}", hash.finish()));
    let library = folder.join(name);
    if library.is_file() {
        return Ok(library);
    }
    let own = folder.join(format!("{}-{name}", std::process::id()));
    std::fs::create_dir_all(&own).map_err(|error| failed(&error))?;
    for (file, text) in [("standin.cc", SOURCE), ("entries.h", &entries)] {
        std::fs::write(own.join(file), text).map_err(|error| failed(&error))?;
    }
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let mut command = Command::new(compiler);
    command.current_dir(&own).args([
        "-std=c++17",
        "-O1",
        "-fPIC",
        "-shared",
        "-I.",
        "-o",
        name,
        "standin.cc",
    ]);
    let output = command.arg(format!("-Wl,-soname,{name}")).output();
    let output = output.map_err(|error| failed(&format!("no C++ compiler ({error}): install g++")))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr)));
    }
    std::fs::rename(own.join(name), &library).map_err(|error| failed(&error))?;
    let _ = std::fs::remove_dir_all(&own);
    Ok(library)
}
