//! The table `[data]`: the samples, and how ranks and batches draw them.

use crate::{Error, Result};
use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// The samples, and how ranks and batches draw them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct DataConfig {
    /// `digits`, `mnist`, `fashion_mnist`, `cifar10`, `pictures`, `arrays`, `text` or `synthetic`.
    pub name: String,
    /// The folder that data is read from. Pictures are in it in a folder for each class; or in folders `train` and `val` (or
    /// `valid`, `validation`, `eval`, `dev`, `test`; in any case) of such. Arrays are in `train_x.npy` and `train_y.npy`, or in
    /// `train.safetensors` as `x` and `y`; and the same of `test`. MNIST is in its folder `mnist` or in torchvision's `raw` in `MNIST`,
    /// CIFAR-10 in `cifar10`, `cifar-10-batches-bin` or `cifar-10-batches-py`, Fashion-MNIST in `fashion_mnist` or `raw` in `FashionMNIST`.
    pub dir: String,
    /// Number of training samples to use, from the first; 0: all.
    pub train_samples: usize,
    /// Number of training samples, from the last, that are held out and that the run is scored on, instead of on the test set; 0: score
    /// on the test set.
    pub validation: usize,
    /// Share of the arrays' samples, or of each class's pictures, that is held out as the test set, drawn from the seed, if there is no
    /// test set.
    pub test_share: f64,
    /// Whether each epoch has a new order of samples.
    pub shuffle: bool,
    /// What happens to an epoch's last samples if they do not divide among the ranks: dropped (true), or filled up by repeated samples
    /// (false).
    pub drop_last: bool,
    /// Whether an epoch's last batch is dropped if it has fewer samples than `training.batch`.
    pub drop_last_batch: bool,
    /// Whether each sample is used exactly once: ranks that run out take part in the last steps with empty batches.
    pub uneven: bool,
    /// Threads of each rank that prepare batches ahead of their steps; 0: batches are prepared in their step.
    pub workers: usize,
    /// Batches that each of these threads prepares ahead.
    pub prefetch: usize,
    /// Black border in pixels around each training picture, from which a random crop of the original size is taken; 0: no crop.
    pub crop_padding: usize,
    /// Whether each training picture is mirrored left to right with probability 1/2.
    pub flip: bool,
    /// Side of a sample of pictures, in pixels.
    pub picture_size: usize,
    /// Pixels that a picture's shorter side is resized to before its centre is taken; at least `data.picture_size`.
    pub resize: usize,
    /// Whether a random rectangle of each training picture, resized to `data.picture_size`, is taken instead of the centre.
    pub random_resized_crop: bool,
    /// Least and greatest area of such a rectangle, relative to the picture's.
    pub crop_scale: [f64; 2],
    /// Least and greatest ratio of such a rectangle's width to its height.
    pub crop_ratio: [f64; 2],
    /// Mean of red, green and blue, of colours in 0..1, which is subtracted from pictures; the defaults are ImageNet's.
    pub picture_mean: [f64; 3],
    /// Standard deviation of red, green and blue, which pictures are divided by.
    pub picture_std: [f64; 3],
    /// Tokens of a sample of text; rows of the bert's table of positions, for samples of as many tokens at most.
    pub positions: usize,
    /// Samples of the synthetic set.
    pub synthetic_samples: usize,
    /// Channels, height and width of a synthetic sample.
    pub synthetic_shape: [usize; 3],
    /// Classes of the synthetic set; for the gpt, its vocabulary.
    pub synthetic_classes: usize,
}

impl Default for DataConfig {
    fn default() -> DataConfig {
        DataConfig {
            name: "digits".into(),
            dir: "data".into(),
            train_samples: 0,
            validation: 0,
            test_share: 0.2,
            shuffle: true,
            drop_last: false,
            drop_last_batch: false,
            uneven: false,
            workers: 0,
            prefetch: 2,
            crop_padding: 0,
            flip: false,
            picture_size: 224,
            resize: 256,
            random_resized_crop: false,
            crop_scale: [0.08, 1.0],
            crop_ratio: [3.0 / 4.0, 4.0 / 3.0],
            picture_mean: [0.485, 0.456, 0.406],
            picture_std: [0.229, 0.224, 0.225],
            positions: 128,
            synthetic_samples: 512,
            synthetic_shape: [3, 32, 32],
            synthetic_classes: 10,
        }
    }
}

impl DataConfig {
    /// Checks that pictures can be cut, and that a sample is either dropped or not.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_pictures()?;
        let (name, drops) =
            if self.drop_last { ("drop_last", true) } else { ("drop_last_batch", self.drop_last_batch) };
        match self.uneven && drops {
            true => {
                Err(Error(format!("`data.uneven` drops no samples and `data.{name}` does: set one of them")))
            }
            false => Ok(()),
        }
    }
}
