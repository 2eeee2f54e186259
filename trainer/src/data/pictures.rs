//! The user's own pictures, by the keys of a configuration.

use super::{Dataset, SampleForm};
use crate::{Config, Result};
pub use allfold_datasets::pictures::unread;
use allfold_datasets::pictures::{self, PictureOptions};
use std::path::Path;

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
    let options = PictureOptions {
        side: config.data.picture_size,
        resize: config.data.resize,
        mean: config.data.picture_mean,
        std: config.data.picture_std,
        test_share: config.data.test_share,
        seed: config.seed,
    };
    Ok(pictures::load(Path::new(&config.data.dir), &options)?)
}
