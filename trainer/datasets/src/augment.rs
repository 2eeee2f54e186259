//! Training pictures moved and mirrored at random, anew in every epoch.
//!
//! ```text
//! padding 1, moved right and down      flip
//!   a b c      0 0 0                   a b c      c b a
//!   d e f      0 a b                   d e f      f e d
//!   g h i      0 d e                   g h i      i h g
//! ```
//!
//! A random rectangle of a picture in a file may become the sample: see [`super::crop`].
//!
//! A picture's change is drawn from the seed, the epoch and the sample's number in the training set alone. The change does not
//! depend on the rank or worker that makes the batch, nor on the other samples in the batch.

use super::crop::{RandomCrop, Rectangle};
use super::{Batch, Dataset};
use crate::{Error, Result};
use allfold_kernels::nn::Float;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// The changes that training pictures may undergo.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AugmentOptions {
    /// The seed of the changes.
    pub seed: u64,
    /// The pixels by which a picture may move in each direction.
    pub padding: usize,
    /// Whether each picture is mirrored left to right with probability 1/2.
    pub flip: bool,
    /// The rectangles that are cut out of pictures in files; with `None` their centres are cut out.
    pub crop: Option<RandomCrop>,
}

/// The random changes of an epoch's pictures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Augment {
    seed: u64,
    padding: usize,
    flip: bool,
    crop: Option<RandomCrop>,
}

/// The random change of one picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    /// The lines by which the picture moves down and the pixels by which it moves right.
    moved: [isize; 2],
    /// Whether left and right are swapped. Swapping comes before moving.
    mirrored: bool,
}

impl Augment {
    /// The augmentation that changes nothing.
    pub const NONE: Augment = Augment { seed: 0, padding: 0, flip: false, crop: None };

    /// The changes in one epoch of pictures of this shape.
    ///
    /// # Errors
    /// If pictures of this shape could be moved out of sight.
    pub fn new(
        options: AugmentOptions,
        (_, height, width): (usize, usize, usize),
        epoch: u64,
    ) -> Result<Augment> {
        let AugmentOptions { seed, padding, flip, crop } = options;
        if padding > 0 && padding >= height.min(width) {
            return Err(Error::Options(format!(
                "`data.crop_padding` is {padding} and pictures are {height} x {width}; it must be less than either side"
            )));
        }
        Ok(Augment { seed: seed.wrapping_add(epoch), padding, flip, crop })
    }

    /// The changes in an epoch, if these are those of epoch 0.
    pub fn in_epoch(self, epoch: u64) -> Augment {
        Augment { seed: self.seed.wrapping_add(epoch), ..self }
    }

    /// The rectangle of a picture of (width, height) pixels that becomes this sample; `None` if none is drawn.
    pub(crate) fn rectangle(&self, sample: usize, sides: (usize, usize)) -> Option<Rectangle> {
        let crop = self.crop?;
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        // The streams from the middle on: `draw` uses those from 1 on.
        random.set_stream((1 << 63) + sample as u64);
        Some(crop.draw(sides, &mut random))
    }

    /// Changes the samples `indices`, which `batch` holds in that order.
    pub(crate) fn apply<F: Float>(&self, dataset: &Dataset, indices: &[usize], batch: &mut Batch<F>) {
        if self.padding == 0 && !self.flip {
            return;
        }
        let (channels, height, width) = dataset.shape;
        let black: Vec<F> = (0..channels).map(|channel| dataset.samples.black(channel)).collect();
        let mut before = vec![F::ZERO; height * width];
        for (&sample, picture) in indices.iter().zip(batch.x.chunks_exact_mut(dataset.features())) {
            let change = self.draw(sample);
            for (plane, &black) in picture.chunks_exact_mut(height * width).zip(&black) {
                before.copy_from_slice(plane);
                change.plane(&before, width, black, plane);
            }
        }
    }

    /// The change of a sample; every offset is equally likely.
    fn draw(&self, sample: usize) -> Change {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        // Stream 0 is used for the order of samples, so samples use streams from 1 on.
        random.set_stream(sample as u64 + 1);
        let mut below = |count: usize| ((u64::from(random.next_u32()) * count as u64) >> 32) as isize;
        let padding = self.padding as isize;
        let moved = [0; 2].map(|_| below(2 * self.padding + 1) - padding);
        Change { moved, mirrored: self.flip && below(2) == 1 }
    }
}

impl Change {
    /// Moves one channel of a picture with lines of `width` pixels: copies `from` to `to`. Pixels from outside the picture are
    /// black.
    fn plane<F: Float>(&self, from: &[F], width: usize, black: F, to: &mut [F]) {
        let [down, right] = self.moved;
        let inside =
            |at: usize, moved: isize, size: usize| at.checked_add_signed(-moved).filter(|&at| at < size);
        for (row, line) in to.chunks_exact_mut(width).enumerate() {
            let Some(row) = inside(row, down, from.len() / width) else {
                line.fill(black);
                continue;
            };
            let source = &from[row * width..][..width];
            for (column, to) in line.iter_mut().enumerate() {
                *to = match inside(column, right, width) {
                    Some(column) if self.mirrored => source[width - 1 - column],
                    Some(column) => source[column],
                    None => black,
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digits;
    use crate::testing::by_sample;
    use std::collections::BTreeMap;

    fn changed(change: Change) -> Vec<f32> {
        let mut to = vec![9.0; 9];
        change.plane(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], 3, -1.0, &mut to);
        to
    }

    #[test]
    fn pictures_move_and_are_mirrored() {
        let change = |moved, mirrored| changed(Change { moved, mirrored });
        assert_eq!(change([0, 0], false), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        assert_eq!(change([1, 1], false), [-1.0, -1.0, -1.0, -1.0, 1.0, 2.0, -1.0, 4.0, 5.0]);
        assert_eq!(change([0, -2], false), [3.0, -1.0, -1.0, 6.0, -1.0, -1.0, 9.0, -1.0, -1.0]);
        assert_eq!(change([0, 0], true), [3.0, 2.0, 1.0, 6.0, 5.0, 4.0, 9.0, 8.0, 7.0]);
        assert_eq!(change([-1, 1], true), [-1.0, 6.0, 5.0, -1.0, 9.0, 8.0, -1.0, -1.0, -1.0]);
    }

    #[test]
    fn every_move_within_the_padding_is_drawn_and_none_beyond() {
        let options = AugmentOptions { padding: 2, flip: true, ..AugmentOptions::default() };
        let augment = Augment::new(options, (1, 8, 8), 3).unwrap();
        let mut seen = BTreeMap::new();
        for sample in 0..5000 {
            let Change { moved, mirrored } = augment.draw(sample);
            *seen.entry((moved, mirrored)).or_insert(0) += 1;
        }
        // There are 50 different changes, each drawn 100 times on average; 60 is four standard deviations away.
        assert_eq!(seen.len(), 50);
        assert!(seen.iter().all(|((moved, _), &times)| moved.iter().all(|m| m.abs() <= 2) && times > 60));
        let other = Augment::new(options, (1, 8, 8), 4).unwrap();
        assert!((0..100).any(|sample| other.draw(sample) != augment.draw(sample)));
        let still = Augment::new(AugmentOptions { padding: 0, ..options }, (1, 8, 8), 0).unwrap();
        assert!((0..100).all(|sample| still.draw(sample).moved == [0, 0]));
    }

    #[test]
    fn what_cannot_be_moved_is_refused() {
        let options = AugmentOptions { padding: 8, ..AugmentOptions::default() };
        let error = Augment::new(options, (3, 8, 9), 0).unwrap_err().to_string();
        assert_eq!(
            error,
            "`data.crop_padding` is 8 and pictures are 8 x 9; it must be less than either side"
        );
    }

    /// A sample's change follows from its number and the epoch, whatever rank and worker prepares it.
    #[test]
    fn a_sample_is_the_same_on_any_rank_and_worker() {
        let (train, _) = digits().unwrap();
        let options = AugmentOptions { padding: 1, flip: true, ..AugmentOptions::default() };
        let epoch = |epoch: u64, world: usize, batch: usize, workers: usize| {
            let augment = Augment::new(options, train.shape, epoch).unwrap();
            by_sample((&train, 200), augment, (world, batch, workers))
        };
        let want = epoch(0, 1, 16, 0);
        assert_eq!(want.len(), 200);
        assert!(epoch(0, 3, 7, 0) == want && epoch(0, 4, 16, 3) == want);
        assert!(epoch(1, 1, 16, 0) != want);
        let mut plain = Batch::<f32>::default();
        train.gather(&[0, 1, 2, 3], &mut plain).unwrap();
        assert!((0..4).any(|i| want[&i] != plain.x[i * train.features()..][..train.features()]));
    }
}
