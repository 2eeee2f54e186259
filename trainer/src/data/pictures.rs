//! The user's own pictures, by the keys of a configuration.

use super::{Dataset, SampleForm};
use crate::{Config, Error, Result};
pub use allfold_datasets::pictures::unread;
use allfold_datasets::pictures::{self, PictureOptions};
use allfold_datasets::{cifar, idx};
use std::path::{Path, PathBuf};

/// The form of the samples; `None` if the folder cannot be read.
pub fn form(config: &Config) -> Option<SampleForm> {
    let classes = pictures::classes(Path::new(&config.data.dir))?.len();
    let shape = (3, config.data.picture_size, config.data.picture_size);
    Some(SampleForm::new(shape, classes))
}

/// The names of the classes; none if the folder cannot be read.
pub fn classes(config: &Config) -> Vec<String> {
    pictures::classes(Path::new(&config.data.dir)).unwrap_or_default()
}

/// The training set and the test set in the folder `data.dir`.
///
/// # Errors
/// As [`pictures::load`].
pub fn load(config: &Config) -> Result<(Dataset, Dataset)> {
    Ok(pictures::load(Path::new(&config.data.dir), &options(config))?)
}

fn options(config: &Config) -> PictureOptions {
    PictureOptions {
        side: config.data.picture_size,
        resize: config.data.resize,
        mean: config.data.picture_mean,
        std: config.data.picture_std,
        test_share: config.data.test_share,
        seed: config.seed,
    }
}

/// The pictures in these files, of the size and scale of the samples that `config` trains on, all with the label 0. They have three
/// colours, also where the samples are grey.
///
/// # Errors
/// Data of another kind than pictures; a path that is no file.
pub(crate) fn alone(config: &Config, files: &[PathBuf]) -> Result<Dataset> {
    let scaled = |side, scale: [(f32, f32); 3]| {
        let (mean, std) = (scale.map(|(mean, _)| mean.into()), scale.map(|(_, std)| std.into()));
        PictureOptions { side, resize: side, mean, std, ..options(config) }
    };
    let options = match config.data.name.as_str() {
        "pictures" => options(config),
        "cifar10" => scaled(32, cifar::SCALE),
        "mnist" => scaled(28, [idx::MNIST_SCALE; 3]),
        "fashion_mnist" => scaled(28, [idx::FASHION_MNIST_SCALE; 3]),
        "digits" => scaled(8, [(0.0, 1.0); 3]),
        other => {
            return Err(Error::Config(format!(
                "the checkpoint is of a run on `{other}`; models of `pictures`, `cifar10`, `mnist`, `fashion_mnist` and `digits` \
                 classify files of pictures"
            )));
        }
    };
    match files.iter().find(|path| !path.is_file()) {
        Some(path) => Err(Error::Data(format!("{}: is no file; name JPEG or PNG files", path.display()))),
        None => Ok(pictures::alone(files, &options)),
    }
}
