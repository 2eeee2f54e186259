//! Pictures that stay in their files until a thread makes a batch of them.
//!
//! A file is read, decoded, cut and resized, and its bytes become numbers: one picture at a time, so a thread holds the pixels of
//! one picture in addition to its batch.

use super::{decode, resize};
use crate::augment::Augment;
use crate::crop::View;
use crate::{Error, Result};
use allfold_base::read_at_most;
use allfold_kernels::nn::Float;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The greatest length of a picture's file in bytes.
pub(super) const LONGEST: u64 = 512 << 20;

/// Pictures of a set. A clone shares the list of their files.
#[derive(Clone, Debug)]
pub struct PictureFiles {
    paths: Arc<[Box<Path>]>,
    /// The range of this set in `paths`.
    range: Range<usize>,
    /// The form of samples.
    form: Form,
}

/// How pictures become samples.
#[derive(Clone, Debug)]
pub struct Form {
    /// The side of a sample.
    pub side: usize,
    /// The shorter side that pictures are resized to if their centre is taken.
    pub resize: usize,
    /// For red, green and blue, the value of each of the 256 bytes.
    pub values: Arc<[[f32; 256]; 3]>,
}

impl PictureFiles {
    /// The pictures of these files.
    pub(crate) fn new(paths: Vec<Box<Path>>, form: Form) -> PictureFiles {
        PictureFiles { range: 0..paths.len(), paths: paths.into(), form }
    }

    /// The number of pictures.
    pub(crate) fn count(&self) -> usize {
        self.range.len()
    }

    /// The value of black in a channel.
    pub(crate) fn black(&self, channel: usize) -> f32 {
        self.form.values.get(channel).map_or(0.0, |values| values[0])
    }

    /// Appends the pictures `indices` to `x`, each as `[colour][row][column]`. `augment` draws their rectangles, or else the
    /// centre is taken.
    ///
    /// # Errors
    /// If a file cannot be read any more, or is damaged; the message names it.
    pub(crate) fn gather<F: Float>(
        &self,
        indices: &[usize],
        augment: &Augment,
        x: &mut Vec<F>,
    ) -> Result<()> {
        let Form { side, resize, values } = &self.form;
        let values = values.map(|values| values.map(|value| F::from_f64(f64::from(value))));
        x.reserve(indices.len() * 3 * side * side);
        for &sample in indices {
            let path = &self.paths[self.range.start + sample];
            let bytes = read_at_most(path, LONGEST, "a picture")
                .map_err(|error| Error::Lost(format!("{}: {error}", path.display())))?;
            let picture =
                decode::rgb(&bytes).map_err(|what| Error::Data(format!("{}: {what}", path.display())))?;
            let sides = (picture.width, picture.height);
            let view = match augment.rectangle(sample, sides) {
                Some(rectangle) => View::of(rectangle, *side),
                None => View::centre(sides, *resize, *side),
            };
            let square = resize::square(&picture.pixels, picture.width, &view);
            for (colour, values) in values.iter().enumerate() {
                x.extend(square.as_chunks::<3>().0.iter().map(|pixel| values[usize::from(pixel[colour])]));
            }
        }
        Ok(())
    }

    /// Keeps the first `at` pictures, and returns the others.
    pub(crate) fn split_off(&mut self, at: usize) -> PictureFiles {
        let middle = self.range.start + at;
        let others = PictureFiles { range: middle..self.range.end, ..self.clone() };
        self.range.end = middle;
        others
    }
}
