//! The user's own pictures: JPEG and PNG files in a folder for each class.
//!
//! ```text
//! load      list the files, check the header of each                       memory: the files' paths
//! a batch   read, decode, cut, resize, subtract the mean, per picture      by the loader's threads
//! ```

mod decode;
mod files;
mod header;
mod kind;
mod listing;
mod resize;
#[cfg(test)]
mod written;

pub use files::PictureFiles;

use crate::samples::{Samples, normalised};
use crate::{Dataset, Error, Result};
use files::Form;
use listing::{Listing, Sets};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How pictures become samples, and which of them are held out.
#[derive(Clone, Copy, Debug)]
pub struct PictureOptions {
    /// The side of a sample in pixels.
    pub side: usize,
    /// The shorter side in pixels that pictures are resized to if their centre is taken; `side` or more.
    pub resize: usize,
    /// Means of red, green and blue, which are subtracted from values of 0 to 1.
    pub mean: [f64; 3],
    /// Deviations of red, green and blue, by which the differences are divided.
    pub std: [f64; 3],
    /// The share of each class's pictures that are the test set, if there is no folder `val` or other folder of a test set.
    pub test_share: f64,
    /// The seed from which these pictures are drawn.
    pub seed: u64,
}

/// The names of the classes in a folder, in the order of the labels; `None` if it cannot be read.
pub fn classes(folder: &Path) -> Option<Vec<String>> {
    let names = listing::layout(folder).ok()?.classes;
    Some(names.iter().map(|name| name.to_string_lossy().into_owned()).collect())
}

/// The names of the folders within a folder that [`load`] does not read, because others of them are the training and the test set.
pub fn unread(folder: &Path) -> Vec<String> {
    let names = listing::layout(folder).map(|layout| layout.unread).unwrap_or_default();
    names.iter().map(|name| name.display().to_string()).collect()
}

/// The training set and the test set in a folder.
///
/// # Errors
/// If there are less than two classes, a class has no picture, `train` and `val` differ in classes, or a file is no picture or too large a
/// picture; the message names the folder or file.
pub fn load(folder: &Path, options: &PictureOptions) -> Result<(Dataset, Dataset)> {
    let PictureOptions { side, test_share, seed, .. } = *options;
    let form = form(options);
    let Sets { classes, train, test } = listing::sets(folder, test_share, seed).map_err(Error::Data)?;
    let set = |Listing { samples }: Listing| {
        let (paths, labels) = samples.into_iter().unzip();
        let samples = Samples::Files(PictureFiles::new(paths, form.clone()));
        Dataset { shape: (3, side, side), classes, samples, labels }
    };
    Ok((set(train), set(test)))
}

/// The pictures in these files, all with the label 0.
pub fn alone(files: &[PathBuf], options: &PictureOptions) -> Dataset {
    let paths = files.iter().map(|path| path.clone().into_boxed_path()).collect();
    let samples = Samples::Files(PictureFiles::new(paths, form(options)));
    Dataset { shape: (3, options.side, options.side), classes: 1, samples, labels: vec![0; files.len()] }
}

fn form(options: &PictureOptions) -> Form {
    let PictureOptions { side, resize, mean, std, .. } = *options;
    let values = std::array::from_fn(|colour| normalised((mean[colour] as f32, std[colour] as f32)));
    Form { side, resize, values: Arc::new(values) }
}

/// Reads bytes as the file of a picture, and drops the result: for fuzzers.
pub(crate) fn read_anything(bytes: &[u8]) {
    drop(decode::rgb(bytes));
}

#[cfg(test)]
mod tests;
