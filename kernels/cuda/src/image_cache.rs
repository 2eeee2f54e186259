//! Compiled kernels on disk, so that the processes of a machine compile each kernel once.
//!
//! The folder is `ALLFOLD_CACHE_DIR`, else `allfold/kernels` in the user's cache folder; an empty variable means no cache. An entry is
//! named by a hash of all that its content depends on, and begins with a hash of its content: a damaged entry is made again.

use crate::Result;
use allfold_base::fnv1a;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a process looks whether another one has compiled an image, and the pause between; then it compiles the image itself.
const TRIES: u32 = 3000;
const PAUSE: Duration = Duration::from_millis(20);

/// The image that depends on `key`: the entry on disk or, if there is none, what `make` makes, which becomes the entry.
///
/// # Errors
/// The error of `make`. A folder that cannot be written costs time only.
pub(super) fn image(key: &str, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    let Some(folder) = folder() else { return make() };
    let again: String = key.chars().rev().collect();
    let entry = folder.join(format!("{:016x}{:016x}", fnv1a(key.as_bytes()), fnv1a(again.as_bytes())));
    if let Some(image) = read(&entry) {
        return Ok(image);
    }
    let held = lock(&entry);
    let known = held.as_ref().and_then(|_| read(&entry));
    let image = known.map_or_else(make, Ok)?;
    // Without an entry the next process compiles again.
    let _ = write(&entry, &image);
    drop(held);
    Ok(image)
}

fn folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let folder = match variable("ALLFOLD_CACHE_DIR") {
        Some(folder) => folder,
        // Tests count what is compiled.
        None if cfg!(feature = "testing") => return None,
        None => {
            let user = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
            user.filter(|folder| folder.is_absolute())?.join("allfold/kernels")
        }
    };
    // The images are run: nobody else may write them.
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    (!folder.as_os_str().is_empty() && made.is_ok()).then_some(folder)
}

/// The content of an entry; `None` if there is none, or a damaged one.
fn read(entry: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(entry).ok()?;
    let (hash, image) = bytes.split_first_chunk::<8>()?;
    (u64::from_le_bytes(*hash) == fnv1a(image)).then(|| image.to_vec())
}

/// Replaces an entry by renaming a complete file over it.
fn write(entry: &Path, image: &[u8]) -> std::io::Result<()> {
    let part = entry.with_extension(std::process::id().to_string());
    fs::write(&part, [&fnv1a(image).to_le_bytes(), image].concat())?;
    fs::rename(&part, entry)
}

/// The lock under which one process makes an entry; `None` if it cannot be had, as where another process is stopped meanwhile.
#[allow(clippy::disallowed_methods, reason = "another process compiles in real time")]
fn lock(entry: &Path) -> Option<File> {
    let file = File::create(entry.with_extension("lock")).ok()?;
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Some(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            Err(TryLockError::Error(_)) => return None,
        }
    }
    None
}
