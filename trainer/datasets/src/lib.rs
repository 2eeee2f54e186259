//! Labelled samples and their sources: published sets, a text, folders of pictures, arrays. Batches of samples, prepared ahead of
//! their step, with random changes of training pictures.
//!
//! ```
//! use allfold_datasets::{Batch, digits};
//!
//! let (train, test) = digits()?;
//! assert_eq!((train.len(), test.len(), train.shape), (1437, 360, (1, 8, 8)));
//! let mut batch = Batch::<f32>::default();
//! train.gather(&[0, 1, 2], &mut batch)?;
//! assert_eq!((batch.x.len(), batch.labels), (3 * 64, vec![0, 1, 2]));
//! # Ok::<(), allfold_datasets::Error>(())
//! ```

pub mod arrays;
mod augment;
pub mod cifar;
mod crop;
mod digits;
mod held_out;
pub mod idx;
pub mod loader;
pub mod pictures;
mod samples;
pub mod synthetic;
#[cfg(test)]
mod testing;
pub mod text;

pub use augment::{Augment, AugmentOptions};
pub use crop::RandomCrop;
pub use digits::digits;
pub use samples::{Pictures, Samples};

use allfold_base::{hash, read_at_most};
use allfold_kernels::nn::Float;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The result of anything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why samples are not available. Each message says what is wrong and what would be right.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Options that do not fit the samples.
    #[error("{0}")]
    Options(String),
    /// A dataset that cannot be read.
    #[error("data: {0}")]
    Data(String),
    /// Data that cannot be read any more, in the middle of a run.
    #[error("data: {0}")]
    Lost(String),
}

/// The greatest length in bytes of a file that is read whole.
const LONGEST: u64 = 256 << 20;

const PIPE: &str = "is a named pipe; data has to be in a regular file";

/// Opens a file that is no named pipe: its other end may never be opened.
fn open(path: &Path) -> std::io::Result<File> {
    match std::fs::metadata(path)?.file_type().is_fifo() {
        true => Err(std::io::Error::new(ErrorKind::InvalidInput, PIPE)),
        false => File::open(path),
    }
}

/// Reads a whole file, or unpacks the file of the same name with `.gz` if only that is there. If both are missing, the error says how to
/// get the file.
fn read(path: &Path) -> Result<Vec<u8>> {
    if let Some(bytes) = unpacked(path)? {
        return Ok(bytes);
    }
    let read = open(path).and_then(|_| read_at_most(path, LONGEST, "a file of a dataset"));
    read.map_err(|error| missing(path, &error))
}

/// The bytes of the file with `.gz` after this name; `None` if there is no such file, or the file itself is there.
fn unpacked(path: &Path) -> Result<Option<Vec<u8>>> {
    let packed = PathBuf::from(format!("{}.gz", path.display()));
    if path.exists() || !packed.exists() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let read = open(&packed)
        .and_then(|file| MultiGzDecoder::new(file).take(LONGEST + 1).read_to_end(&mut bytes).map(|_| ()));
    match read {
        Ok(()) if bytes.len() as u64 > LONGEST => {
            Err(Error::Data(format!("{}: has more than {LONGEST} bytes unpacked", packed.display())))
        }
        Ok(()) => Ok(Some(bytes)),
        Err(error) => Err(Error::Data(format!("{}: {error}", packed.display()))),
    }
}

/// Reads bytes as a file of pictures and a file of labels in the idx format, and drops the result: for fuzzers. The bytes may
/// be refused; reading never panics, or allocates by a length in the bytes. The first two bytes are the length of the first
/// file.
pub fn read_any_idx(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first_chunk::<2>() else { return };
    let (images, labels) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length))));
    idx::read_anything(images, labels);
}

/// [`read_any_idx`] for each kind of file of CIFAR-10.
pub fn read_any_cifar(bytes: &[u8]) {
    cifar::read_anything(bytes);
}

/// Reads bytes as the file of a picture, as [`read_any_idx`]: neither a size in the bytes nor a damaged file makes decoding panic.
pub fn read_any_picture(bytes: &[u8]) {
    pictures::read_anything(bytes);
}

/// Reads bytes as a `.npy` file, as [`read_any_idx`].
pub fn read_any_npy(bytes: &[u8]) {
    allfold_tensor_files::npy::read_any(bytes);
}

fn missing(path: &Path, error: &std::io::Error) -> Error {
    if matches!(error.kind(), ErrorKind::FileTooLarge | ErrorKind::InvalidInput) {
        return Error::Data(format!("{}: {error}", path.display()));
    }
    let text = path.file_name().filter(|name| *name == "text.txt").and(Some("text"));
    let folder = path.parent();
    let set = text.or_else(|| folder.and_then(Path::file_name).and_then(std::ffi::OsStr::to_str));
    let data = if text.is_some() { folder } else { folder.and_then(Path::parent) };
    let hint = match (set, data) {
        (Some("fashion_mnist" | "raw"), _) => "the set's four idx files belong there".into(),
        (Some(set), Some(data)) => {
            format!("`python3 -m allfold.fetch {set} --dir {}` brings it", data.display())
        }
        _ => "`python3 -m allfold.fetch NAME` brings a dataset".to_string(),
    };
    Error::Data(format!("{}: {error}; {hint}", path.display()))
}

/// What a network must know of the samples that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleForm {
    /// Channels, height and width of a sample.
    pub shape: (usize, usize, usize),
    /// The number of classes.
    pub classes: usize,
}

impl SampleForm {
    /// Samples of a shape (channels, height, width) and a number of classes.
    pub const fn new(shape: (usize, usize, usize), classes: usize) -> SampleForm {
        SampleForm { shape, classes }
    }
}

/// Samples with their labels.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Channels, height and width of a sample; their product is its number of features.
    pub shape: (usize, usize, usize),
    /// The number of classes: every label is below it.
    pub classes: usize,
    /// All samples, one after another.
    pub samples: Samples,
    /// The labels: one per sample; for text, one per position.
    pub labels: Vec<u32>,
}

/// Samples side by side, ready for a forward pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch<F> {
    /// The features, as `x[sample][feature]`.
    pub x: Vec<F>,
    /// The labels of the samples.
    pub labels: Vec<u32>,
}

impl Dataset {
    /// The form of the samples.
    pub fn form(&self) -> SampleForm {
        SampleForm::new(self.shape, self.classes)
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.samples.count(self.features())
    }

    /// The number of labels of a sample.
    pub fn rows(&self) -> usize {
        self.labels.len() / self.len().max(1)
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of features of a sample.
    pub fn features(&self) -> usize {
        self.shape.0 * self.shape.1 * self.shape.2
    }

    /// A hash of what the set holds: its form, all labels, and some samples unless they are in files of their own. Sets with other
    /// samples or labels have other hashes, unless they differ only in samples that are not hashed.
    ///
    /// # Errors
    /// As [`Dataset::gather`].
    pub fn fingerprint(&self) -> Result<u64> {
        /// The number of samples that are hashed.
        const SEEN: usize = 16;
        let mut hash = hash::SplitMix(0);
        let mut add = |word: u64| hash.0 = hash.word() ^ word;
        let form = [self.len(), self.classes, self.shape.0, self.shape.1, self.shape.2];
        form.iter().for_each(|size| add(*size as u64));
        self.labels.iter().for_each(|label| add(u64::from(*label)));
        if !matches!(self.samples, Samples::Files(_)) {
            let (mut batch, count) = (Batch::<f32>::default(), self.len());
            let seen: Vec<usize> = (0..count.min(SEEN)).map(|at| at * count / count.min(SEEN)).collect();
            self.gather(&seen, &mut batch)?;
            batch.x.iter().for_each(|value| add(u64::from(value.to_bits())));
        }
        Ok(hash.word())
    }

    /// Fills `batch` with the samples `indices`, in that order.
    ///
    /// # Errors
    /// If the samples are in files that cannot be read any more or are damaged.
    pub fn gather<F: Float>(&self, indices: &[usize], batch: &mut Batch<F>) -> Result<()> {
        self.gather_parts(indices, &Augment::NONE, batch)
    }

    /// [`Dataset::gather`] with the parts of pictures in files that `augment` draws.
    fn gather_parts<F: Float>(
        &self,
        indices: &[usize],
        augment: &Augment,
        batch: &mut Batch<F>,
    ) -> Result<()> {
        let rows = self.rows();
        batch.x.clear();
        batch.labels.clear();
        for &i in indices {
            batch.labels.extend_from_slice(&self.labels[i * rows..(i + 1) * rows]);
        }
        self.samples.gather(indices, augment, self.features(), &mut batch.x)
    }

    /// [`Dataset::gather`] with training pictures cut, moved and mirrored as `augment` draws.
    ///
    /// # Errors
    /// As [`Dataset::gather`].
    pub fn gather_changed<F: Float>(
        &self,
        augment: &Augment,
        indices: &[usize],
        batch: &mut Batch<F>,
    ) -> Result<()> {
        self.gather_parts(indices, augment, batch)?;
        augment.apply(self, indices, batch);
        Ok(())
    }

    /// The first `count` samples, or all if there are fewer.
    pub fn first(mut self, count: usize) -> Dataset {
        if count < self.len() {
            self.split_off(count);
        }
        self
    }

    /// Keeps the first `at` samples, and returns the others.
    ///
    /// # Panics
    /// If there are fewer than `at` samples.
    pub fn split_off(&mut self, at: usize) -> Dataset {
        let (features, rows) = (self.features(), self.rows());
        let samples = self.samples.split_off(at, features);
        Dataset { samples, labels: self.labels.split_off(at * rows), ..*self }
    }
}
