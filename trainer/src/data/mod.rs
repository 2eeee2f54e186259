//! Labelled samples, and where they come from.
//!
//! | `data` | read from `data_dir` | samples |
//! |---|---|---|
//! | `digits` | nothing: part of the program | 1,797 digits of 8x8 |
//! | `mnist`, `fashion_mnist` | four idx files in a directory of that name | 70,000 of 28x28 |
//! | `cifar10` | its binary batches, or PNG strips with JSON labels | 60,000 of 3x32x32 |
//! | `text` | `text.txt`, byte by byte | windows of `positions` bytes |
//! | `synthetic` | nothing: drawn from the seed | `synthetic_samples` of `synthetic_shape` |

pub mod augment;
mod cifar;
mod digits;
mod idx;
pub mod loader;
mod samples;
mod synthetic;
mod text;

pub use augment::Augment;
pub use digits::digits;
pub use samples::{Pictures, Samples};

use crate::added::{Added, Named};
use crate::{Config, Error, Result};
use std::path::Path;

/// The names by which a configuration asks for data.
pub const DATA: &[(&str, &str)] = &[
    ("digits", "1,797 handwritten digits of 8x8 pixels, part of the program"),
    ("mnist", "70,000 handwritten digits of 28x28 pixels, idx files"),
    ("fashion_mnist", "70,000 pictures of clothes of 28x28 pixels, idx files"),
    ("cifar10", "60,000 coloured pictures of 32x32 pixels, binary batches or PNG strips"),
    ("text", "a text, byte by byte, for the gpt"),
    ("synthetic", "random pictures of any shape, with random labels"),
];

/// A dataset for `data = "NAME"`.
#[derive(Clone, Copy, Debug)]
pub struct OwnDataset {
    /// The name in configurations.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// Loads the training set and the test set.
    pub load: fn(&Config) -> Result<(Dataset, Dataset)>,
}

impl Named for OwnDataset {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// The datasets that the program added.
pub(crate) static ADDED: Added<OwnDataset> = Added::to("dataset", DATA);

/// The training set that `config` asks for, and what it is to be scored on: the test set, or where it holds out training
/// samples for `validation`, those, and no sample of the test set.
///
/// # Errors
/// If there is no such set, or a file is missing or damaged, and which.
pub fn load(config: &Config) -> Result<(Dataset, Dataset)> {
    let (mut train, test) = published(config)?;
    match config.validation {
        0 => Ok((train, test)),
        count if count < train.len() => {
            let validation = train.split_off(train.len() - count);
            Ok((train, validation))
        }
        count => Err(Error::Config(format!(
            "`validation` takes {count} of {} training samples; leave at least one to train on",
            train.len()
        ))),
    }
}

/// The shape of a sample and the number of classes of the set that `config` asks for; of a text only [`load`] knows.
pub fn form(config: &Config) -> Option<((usize, usize, usize), usize)> {
    match config.data.as_str() {
        "digits" => Some(((1, 8, 8), 10)),
        "mnist" | "fashion_mnist" => Some(((1, 28, 28), 10)),
        "cifar10" => Some(((3, 32, 32), 10)),
        "synthetic" => Some((synthetic::shape(config), config.synthetic_classes)),
        _ => None,
    }
}

fn published(config: &Config) -> Result<(Dataset, Dataset)> {
    let directory = Path::new(&config.data_dir);
    match config.data.as_str() {
        "digits" => digits(),
        "mnist" => idx::load(&directory.join("mnist"), (0.1307, 0.3081)),
        "fashion_mnist" => idx::load(&directory.join("fashion_mnist"), (0.2860, 0.3530)),
        "cifar10" => cifar::load(&directory.join("cifar10")),
        "text" => text::load(&directory.join("text.txt"), config.positions),
        "synthetic" => synthetic::load(config),
        other => match ADDED.find(other) {
            Some(own) => (own.load)(config),
            None => Err(crate::unknown::unknown("data", other, ADDED.names())),
        },
    }
}

/// Reads a whole file, or says what would bring it.
fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| missing(path, &error))
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

fn missing(path: &Path, error: &std::io::Error) -> Error {
    let set = path.parent().and_then(Path::file_name);
    let hint = match set.is_some_and(|set| set == "fashion_mnist") {
        true => "the set's four idx files belong there",
        false => "`allfold data fetch` brings it",
    };
    Error::Data(format!("{}: {error}; {hint}", path.display()))
}

use allfold_kernels::nn::Float;

/// Samples with their labels.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Channels, height and width of a sample; their product is its number of features.
    pub shape: (usize, usize, usize),
    /// Labels are below this.
    pub classes: usize,
    /// All samples, one after another.
    pub samples: Samples,
    /// One label per sample; for text, one per position.
    pub labels: Vec<u32>,
}

/// Samples side by side, ready for a forward pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch<F> {
    /// `x[sample][features]`.
    pub x: Vec<F>,
    /// The labels of the samples.
    pub labels: Vec<u32>,
}

impl Dataset {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.samples.count(self.features())
    }

    /// Labels of a sample.
    pub fn rows(&self) -> usize {
        self.labels.len() / self.len().max(1)
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Numbers per sample.
    pub fn features(&self) -> usize {
        self.shape.0 * self.shape.1 * self.shape.2
    }

    /// Fills `batch` with the samples `indices`, in that order.
    ///
    /// # Errors
    /// If they are in a file that cannot be read any more.
    pub fn gather<F: Float>(&self, indices: &[usize], batch: &mut Batch<F>) -> Result<()> {
        let rows = self.rows();
        batch.x.clear();
        batch.labels.clear();
        for &i in indices {
            batch.labels.extend_from_slice(&self.labels[i * rows..(i + 1) * rows]);
        }
        self.samples.gather(indices, self.features(), &mut batch.x)
    }

    /// [`Dataset::gather`] with training pictures moved and mirrored as `augment` draws.
    ///
    /// # Errors
    /// As [`Dataset::gather`].
    pub fn gather_changed<F: Float>(
        &self,
        augment: &Augment,
        indices: &[usize],
        batch: &mut Batch<F>,
    ) -> Result<()> {
        self.gather(indices, batch)?;
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
    /// If there are fewer.
    pub fn split_off(&mut self, at: usize) -> Dataset {
        let (features, rows) = (self.features(), self.rows());
        let samples = self.samples.split_off(at, features);
        Dataset { samples, labels: self.labels.split_off(at * rows), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sets_that_can_be_fetched_are_said_to_be() {
        for (data, fetched) in [("mnist", true), ("cifar10", true), ("text", true), ("fashion_mnist", false)]
        {
            let config = Config { data: data.into(), data_dir: "no/such/folder".into(), ..Config::default() };
            let error = load(&config).unwrap_err().to_string();
            assert_eq!(error.contains("data fetch"), fetched, "{error}");
        }
    }
}
