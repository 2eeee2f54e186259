//! Labelled samples and their sources, by name.
//!
//! | `data` | read from `data.dir` | samples |
//! |---|---|---|
//! | `digits` | nothing: part of the program | 1,797 digits of 8x8 |
//! | `mnist`, `fashion_mnist` | four idx files, packed with gzip or not, in a directory of that name, or in torchvision's `MNIST/raw`, `FashionMNIST/raw` | 70,000 of 28x28 |
//! | `cifar10` | its binary or Python batches, or PNG strips with JSON labels | 60,000 of 3x32x32 |
//! | `pictures` | a folder for each class, of JPEG and PNG files; or `train` and `val` of such | 3 x `data.picture_size` x `data.picture_size` |
//! | `arrays` | `train_x.npy` and `train_y.npy`, or `train.safetensors`; and the same of `test` | of the arrays' shape |
//! | `text` | `text.txt`, byte by byte | windows of `positions` bytes |
//! | `synthetic` | nothing: drawn from the seed | `data.synthetic_samples` of `data.synthetic_shape` |

pub mod pictures;

pub use allfold_datasets::pictures::PictureFiles;
pub use allfold_datasets::{
    Augment, Batch, Dataset, Pictures, SampleForm, Samples, digits, loader, read_any_cifar, read_any_idx,
    read_any_npy, read_any_picture,
};

use crate::added::{Added, Named};
use crate::{Config, Error, Result};
use allfold_datasets::arrays::{self, ArrayOptions, Tokens};
use allfold_datasets::synthetic::{self, SyntheticOptions};
use allfold_datasets::{AugmentOptions, RandomCrop, cifar, idx, text};
use std::path::{Path, PathBuf};

/// The names by which a configuration selects data.
pub const DATA: &[(&str, &str)] = &[
    ("digits", "1,797 handwritten digits of 8x8 pixels, part of the program"),
    ("mnist", "70,000 handwritten digits of 28x28 pixels, idx files"),
    ("fashion_mnist", "70,000 pictures of clothes of 28x28 pixels, idx files"),
    ("cifar10", "60,000 coloured pictures of 32x32 pixels, binary batches or PNG strips"),
    ("pictures", "your own pictures, JPEG or PNG, in a folder for each class"),
    ("arrays", "your own arrays of samples and labels, NumPy or safetensors files"),
    ("text", "a text, byte by byte, for the gpt"),
    ("synthetic", "random pictures of any shape, with random labels"),
];

/// A dataset for `data.name = "NAME"`.
#[derive(Clone, Copy, Debug)]
pub struct OwnDataset {
    /// The name by which a configuration selects the dataset.
    pub name: &'static str,
    /// A description of the dataset in a few words.
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

/// The training set that `config` selects, and the set that the run is scored on: the test set; or with `validation`, the training samples
/// that are held out, and no sample of the test set.
///
/// # Errors
/// If there is no such set, or a file is missing or damaged; the message names it.
pub fn load(config: &Config) -> Result<(Dataset, Dataset)> {
    let (mut train, test) = published(config)?;
    match config.data.validation {
        0 => Ok((train, test)),
        count if count < train.len() => {
            let validation = train.split_off(train.len() - count);
            Ok((train, validation))
        }
        count => Err(Error::Config(format!(
            "`data.validation` takes {count} of {} training samples; leave at least one to train on",
            train.len()
        ))),
    }
}

/// The form of the samples of the set that `config` selects; `None` if only [`load`] can determine them.
pub fn form(config: &Config) -> Option<SampleForm> {
    match config.data.name.as_str() {
        "digits" => Some(SampleForm::new((1, 8, 8), 10)),
        "mnist" | "fashion_mnist" => Some(SampleForm::new((1, 28, 28), 10)),
        "cifar10" => Some(SampleForm::new((3, 32, 32), 10)),
        "pictures" => pictures::form(config),
        "synthetic" => Some(SampleForm::new(synthetic_shape(config), config.data.synthetic_classes)),
        _ => None,
    }
}

/// The names of the classes of CIFAR-10 and Fashion-MNIST, in the order of the labels.
const CIFAR10: &str = "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck";
const FASHION_MNIST: &str = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot";

/// The names of the classes of the set that `config` selects, in the order of the labels; empty if they have none but their numbers.
pub fn class_names(config: &Config) -> Vec<String> {
    let names = |names: &str| names.split(',').map(String::from).collect();
    match config.data.name.as_str() {
        "pictures" => pictures::classes(config),
        "cifar10" => names(CIFAR10),
        "fashion_mnist" => names(FASHION_MNIST),
        _ => Vec::new(),
    }
}

/// The shape of a synthetic sample: a picture's, or for a model of texts its number of tokens.
fn synthetic_shape(config: &Config) -> (usize, usize, usize) {
    let [channels, height, width] = config.data.synthetic_shape;
    if config.model.predicts_tokens() { (1, 1, config.data.positions) } else { (channels, height, width) }
}

/// Whether the model looks up arrays of samples as tokens.
fn tokens(config: &Config) -> Tokens {
    match config.model.name.as_str() {
        "gpt" | "llama" => Tokens::Classes,
        "bert" => Tokens::Below(config.model.vocabulary),
        _ => Tokens::No,
    }
}

/// The first of these folders that is there, or the first.
fn within(directory: &Path, names: &[&str]) -> PathBuf {
    let all = || names.iter().map(|name| directory.join(name));
    all().find(|folder| folder.is_dir()).unwrap_or_else(|| directory.join(names[0]))
}

fn published(config: &Config) -> Result<(Dataset, Dataset)> {
    let directory = Path::new(&config.data.dir);
    match config.data.name.as_str() {
        "digits" => Ok(digits()?),
        "mnist" => Ok(idx::load(&within(directory, &["mnist", "MNIST/raw"]), idx::MNIST_SCALE)?),
        "fashion_mnist" => Ok(idx::load(
            &within(directory, &["fashion_mnist", "FashionMNIST/raw"]),
            idx::FASHION_MNIST_SCALE,
        )?),
        "cifar10" => {
            let folder = within(directory, &["cifar10", "cifar-10-batches-bin", "cifar-10-batches-py"]);
            Ok(cifar::load(&folder)?)
        }
        "pictures" => pictures::load(config),
        "arrays" => Ok(arrays::load(
            directory,
            &ArrayOptions { tokens: tokens(config), test_share: config.data.test_share, seed: config.seed },
        )?),
        "text" => Ok(text::load(&directory.join("text.txt"), config.data.positions)?),
        "synthetic" => Ok(synthetic::load(&SyntheticOptions {
            samples: config.data.synthetic_samples,
            shape: synthetic_shape(config),
            classes: config.data.synthetic_classes,
            tokens: config.model.predicts_tokens(),
            seed: config.seed,
        })?),
        other => match ADDED.find(other) {
            Some(own) => (own.load)(config),
            None => Err(crate::unknown::unknown("data", other, ADDED.names())),
        },
    }
}

/// The random changes of pictures of this shape that `config` selects, in one epoch.
///
/// # Errors
/// If pictures of this shape could be moved out of sight.
pub fn augment(config: &Config, shape: (usize, usize, usize)) -> Result<Augment> {
    let crop = RandomCrop { scale: config.data.crop_scale, ratio: config.data.crop_ratio };
    let options = AugmentOptions {
        seed: config.seed,
        padding: config.data.crop_padding,
        flip: config.data.flip,
        crop: config.data.random_resized_crop.then_some(crop),
    };
    Ok(Augment::new(options, shape, 0)?)
}

#[cfg(test)]
mod tests;
