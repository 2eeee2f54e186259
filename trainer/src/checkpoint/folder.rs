//! The folder of a run's checkpoints: the names of its files, the lock that one run holds on the folder, and how files are written.

use super::{unread, unwritten};
use crate::{Error, Result};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A run's lock on its folder of checkpoints. The lock is released when this value is dropped or when the process ends in any way.
#[derive(Debug)]
pub struct FolderLock {
    /// The open folder, which has the lock if the file system has locks.
    folder: File,
}

impl FolderLock {
    /// Takes the lock on a folder, which is created if it does not exist. `None`: another run holds the lock. The lock is on the
    /// folder itself, without a lock file. If the file system has no such locks (NFS), every run gets a lock that excludes nobody.
    ///
    /// # Errors
    /// The folder cannot be made or opened.
    pub fn take(directory: &Path) -> Result<Option<FolderLock>> {
        let opened = fs::create_dir_all(directory).and_then(|()| File::open(directory));
        let folder = opened.map_err(|error| unread(directory, &error))?;
        match folder.try_lock() {
            Err(TryLockError::WouldBlock) => Ok(None),
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(FolderLock { folder })),
        }
    }

    /// Checks that `directory` still is the folder on which the run has its lock.
    ///
    /// # Errors
    /// The folder was renamed, removed, or replaced by another one or by a link.
    pub fn check(&self, directory: &Path) -> Result<()> {
        use std::os::unix::fs::MetadataExt;
        let of = |found: io::Result<fs::Metadata>| found.map(|meta| (meta.dev(), meta.ino()));
        match (of(self.folder.metadata()), of(fs::metadata(directory))) {
            (Ok(locked), Ok(now)) if locked == now => Ok(()),
            (Ok(_), Err(error)) if error.kind() != ErrorKind::NotFound => Err(unread(directory, &error)),
            (Err(error), _) => Err(unread(directory, &error)),
            _ => Err(Error::Checkpoint(format!(
                "{}: is no longer the folder in which this run began: put that folder back, and resume from it",
                directory.display()
            ))),
        }
    }
}

/// The file name of the checkpoint of the epoch with the best score.
pub const BEST: &str = "best.safetensors";

/// The extension of a file that has a whole checkpoint, and of a folder that has its parts.
const KINDS: [&str; 2] = ["safetensors", "sharded"];

/// The name of the checkpoint after `step` steps: of a file, or of a folder of parts.
pub(super) fn name(step: u64, sharded: bool) -> String {
    format!("step-{step:08}.{}", KINDS[usize::from(sharded)])
}

/// The file name of a rank's part.
pub(super) fn rank_file(rank: usize) -> String {
    format!("rank-{rank:05}.safetensors")
}

/// The number of steps in a checkpoint's file name; `None` if the name does not have the form of [`name`].
pub(super) fn step(path: &Path) -> Option<u64> {
    let digits = path.file_stem()?.to_str()?.strip_prefix("step-")?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Writes a checkpoint into its folder, and removes all but the best and the newest `keep`. Files that a failure or a crash has left are
/// removed first, because they may fill the disk.
pub(super) fn put(directory: &Path, path: &Path, keep: usize, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    prune(directory, keep)?;
    write(directory, path, |file| file.write_all(bytes))?;
    prune(directory, keep)
}

/// The folder of the parts of a checkpoint, and its name until all parts are written.
fn parts(directory: &Path, step: u64) -> (PathBuf, PathBuf) {
    let path = directory.join(name(step, true));
    let temporary = path.with_extension("tmp");
    (path, temporary)
}

/// Makes the folder of the parts of a checkpoint, under its temporary name.
pub(super) fn begin(directory: &Path, step: u64, keep: usize) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    prune(directory, keep)?;
    fs::create_dir(parts(directory, step).1)
}

/// Writes a rank's part; an error names the file.
pub(super) fn put_part(directory: &Path, step: u64, rank: usize, bytes: &[u8]) -> Result<()> {
    let folder = parts(directory, step).1;
    let path = folder.join(rank_file(rank));
    write(&folder, &path, |file| file.write_all(bytes)).map_err(|error| unwritten(&path, &error))
}

/// Gives the folder of parts its name, and removes all but the best and the newest `keep` checkpoints.
pub(super) fn commit(directory: &Path, step: u64, keep: usize) -> io::Result<()> {
    let (path, temporary) = parts(directory, step);
    if path.is_dir() {
        // A run that was stopped at the end of an epoch has written the epoch without its score.
        fs::remove_dir_all(&path)?;
    }
    fs::rename(temporary, path)?;
    File::open(directory)?.sync_all()?;
    prune(directory, keep)
}

/// Removes the parts of a checkpoint that is not complete.
pub(super) fn discard(directory: &Path, step: u64) -> io::Result<()> {
    remove(&parts(directory, step).1)
}

/// Removes a file or a link, or a folder with what is in it.
fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path)?.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    }
}

/// Writes under another name first, so that a file with the final name is complete. If writing fails, no file is left.
fn write(directory: &Path, path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    // `create_new` does not follow a link that somebody else may have placed there.
    let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
    let written = fill(&mut file).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        // Only the first error is reported.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    // The new name is safe only once the directory is on disk.
    File::open(directory)?.sync_all()
}

/// Removes all but the best and the newest `keep` checkpoints, and incomplete files from a crash.
fn prune(directory: &Path, keep: usize) -> io::Result<()> {
    let all = named(directory, &KINDS)?;
    let old = &all[..all.len().saturating_sub(keep.max(1))];
    old.iter().chain(&named(directory, &["tmp"])?).try_for_each(|path| remove(path))?;
    match fs::remove_file(directory.join(BEST).with_extension("tmp")) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What a directory has that is named after a step and has one of these extensions, oldest first; nothing if the directory does not
/// exist.
fn named(directory: &Path, extensions: &[&str]) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let ours = path.file_stem().and_then(|stem| stem.to_str()).is_some_and(|stem| {
            stem.strip_prefix("step-").is_some_and(|step| step.bytes().all(|b| b.is_ascii_digit()))
        });
        if ours
            && path.extension().is_some_and(|found| extensions.iter().any(|extension| found == *extension))
        {
            paths.push(path);
        }
    }
    // Longer numbers are later; of equal length, the names' order is the numbers'.
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_os_string());
    paths.sort_by_key(|path| (stem(path).map_or(0, |stem| stem.len()), path.clone()));
    Ok(paths)
}

/// The newest of a directory's checkpoints that are named after their step, if it has one.
///
/// # Errors
/// If the directory cannot be read.
pub fn newest(directory: &Path) -> Result<Option<PathBuf>> {
    let all = all(directory).map_err(|error| unread(directory, &error))?;
    Ok(all.into_iter().next_back())
}

/// A directory's checkpoints that are named after their step, oldest first.
pub(super) fn all(directory: &Path) -> io::Result<Vec<PathBuf>> {
    named(directory, &KINDS)
}

/// The error of a run if another run has locked its folder.
pub(crate) fn taken(directory: &Path) -> Error {
    Error::Config(format!(
        "`checkpoint.dir` {}: another run writes its checkpoints there; wait until it has ended, or name another folder",
        directory.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_write_that_fails_at_any_byte_leaves_what_was_there_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join(name(1, false)), directory.path().join(name(2, false)));
        put(directory.path(), &first, 1, b"the first").unwrap();
        for written in 0..10 {
            let fails = |file: &mut File| {
                file.write_all(&b"the second"[..written])?;
                Err(ErrorKind::StorageFull.into())
            };
            let error = write(directory.path(), &second, fails).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull);
            assert_eq!(files(directory.path()), [name(1, false)], "after {written} bytes");
        }
        // The best is replaced whole, too, and stays when the newest are removed.
        let best = directory.path().join(BEST);
        put(directory.path(), &best, 1, b"the best so far").unwrap();
        for written in 0..10 {
            let fails = |file: &mut File| {
                file.write_all(&b"the better"[..written])?;
                Err(ErrorKind::StorageFull.into())
            };
            write(directory.path(), &best, fails).unwrap_err();
            assert_eq!(fs::read_to_string(&best).unwrap(), "the best so far");
            assert_eq!(files(directory.path()), [BEST.to_string(), name(1, false)]);
        }
        fs::write(directory.path().join("best.tmp"), "half of one").unwrap();
        put(directory.path(), &best, 1, b"the better").unwrap();
        assert_eq!(fs::read_to_string(&best).unwrap(), "the better");
        assert_eq!(files(directory.path()), [BEST.to_string(), name(1, false)]);
        // A file left by a crash is removed before the next write, which may need its space; a link is not written through.
        let elsewhere = directory.path().join("elsewhere");
        fs::write(&elsewhere, "kept").unwrap();
        fs::write(directory.path().join("step-00000009.tmp"), "half of one").unwrap();
        std::os::unix::fs::symlink(&elsewhere, directory.path().join("step-00000002.tmp")).unwrap();
        put(directory.path(), &second, 1, b"the second").unwrap();
        assert_eq!(files(directory.path()), [BEST.to_string(), "elsewhere".to_string(), name(2, false)]);
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "kept");
        assert!(fs::symlink_metadata(&second).unwrap().is_file());
    }

    #[test]
    fn stale_files_are_gone_before_the_write_and_not_after_it() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("step-00000009.tmp"), "half of one").unwrap();
        // The write fails: a folder has the name that the file should get.
        let path = directory.path().join(name(2, false));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), "").unwrap();
        put(directory.path(), &path, 1, b"the second").unwrap_err();
        assert_eq!(files(directory.path()), [name(2, false)]);
    }
}
