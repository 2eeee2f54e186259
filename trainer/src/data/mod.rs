//! Labelled samples in memory, and where they come from.
//!
//! | `data` | read from `data_dir` | samples |
//! |---|---|---|
//! | `digits` | nothing: part of the program | 1,797 digits of 8x8 |
//! | `mnist`, `fashion_mnist` | four idx files in a directory of that name | 70,000 of 28x28 |
//! | `cifar10` | its binary batches, or PNG strips with JSON labels | 60,000 of 3x32x32 |
//! | `text` | `text.txt`, byte by byte | windows of `positions` bytes |
//! | `synthetic` | nothing: drawn from the seed | `synthetic_samples` of `synthetic_shape` |

mod cifar;
mod digits;
mod idx;
pub mod loader;
mod synthetic;
mod text;

pub use digits::digits;

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

/// The training and the test set that `config` asks for.
///
/// # Errors
/// If there is no such set, or a file is missing or damaged, and which.
pub fn load(config: &Config) -> Result<(Dataset, Dataset)> {
    let directory = Path::new(&config.data_dir);
    match config.data.as_str() {
        "digits" => digits(),
        "mnist" => idx::load(&directory.join("mnist"), (0.1307, 0.3081)),
        "fashion_mnist" => idx::load(&directory.join("fashion_mnist"), (0.2860, 0.3530)),
        "cifar10" => cifar::load(&directory.join("cifar10")),
        "text" => text::load(&directory.join("text.txt"), config.positions),
        "synthetic" => synthetic::load(config),
        other => Err(crate::config::unknown("data", other, DATA.iter().map(|(name, _)| *name))),
    }
}

/// Reads a whole file, or says what would bring it.
fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| {
        Error::Data(format!("{}: {error}; `allfold data fetch` brings the published sets", path.display()))
    })
}

use allfold_kernels::nn::Float;

/// Samples with their labels: `pixels[sample][features]`, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// Channels, height and width of a sample; their product is its number of features.
    pub shape: (usize, usize, usize),
    /// Labels are below this.
    pub classes: usize,
    /// All samples, one after another.
    pub pixels: Vec<f32>,
    /// One label per sample; of text, one per position.
    pub labels: Vec<u32>,
}

/// Samples side by side, ready for a forward pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch<F> {
    /// `x[sample][features]`.
    pub x: Vec<F>,
    /// Their labels.
    pub labels: Vec<u32>,
}

impl Dataset {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.pixels.len() / self.features().max(1)
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
    pub fn gather<F: Float>(&self, indices: &[usize], batch: &mut Batch<F>) {
        let (features, rows) = (self.features(), self.rows());
        batch.x.clear();
        batch.labels.clear();
        for &i in indices {
            let sample = &self.pixels[i * features..(i + 1) * features];
            batch.x.extend(sample.iter().map(|&pixel| F::from_f64(f64::from(pixel))));
            batch.labels.extend_from_slice(&self.labels[i * rows..(i + 1) * rows]);
        }
    }

    /// The first `count` samples, or all if there are fewer.
    pub fn first(mut self, count: usize) -> Dataset {
        let (features, rows) = (self.features(), self.rows());
        self.labels.truncate(count * rows);
        self.pixels.truncate(count * features);
        self
    }
}
