//! Pictures cut into tiles, and the positions of a tile's pixels.

use super::transforms::{inner, outer, pixels};
use crate::nn::Float;

/// The shape of pictures that are cut into tiles.
#[derive(Clone, Copy)]
pub(super) struct Pictures {
    pub channels: usize,
    pub picture: (usize, usize),
    /// The distance in pixels from the first pixel of tile (0, 0) to the picture's first pixel, along each side: the padding.
    pub before: usize,
    /// The number of tile rows and of tile columns of a picture.
    pub tiles: (usize, usize),
}

impl Pictures {
    pub fn pixels(&self) -> usize {
        self.picture.0 * self.picture.1
    }

    /// The number of tiles of a picture.
    pub fn each(&self) -> usize {
        self.tiles.0 * self.tiles.1
    }

    /// The offsets of a tile's `SIDE` x `SIDE` pixels in channel-last pictures; `outside` for pixels outside the picture.
    fn places<const SIDE: usize, const AREA: usize>(&self, tile: usize, outside: usize) -> [usize; AREA] {
        let (height, width) = self.picture;
        let (sample, row, col) =
            (tile / self.each(), tile / self.tiles.1 % self.tiles.0, tile % self.tiles.1);
        std::array::from_fn(|at| {
            let (i, j) = (2 * row + at / SIDE, 2 * col + at % SIDE);
            let inside = i >= self.before && j >= self.before;
            match (i.wrapping_sub(self.before), j.wrapping_sub(self.before)) {
                (i, j) if inside && i < height && j < width => {
                    ((sample * height + i) * width + j) * self.channels
                }
                _ => outside,
            }
        })
    }

    /// Transforms `tiles` tiles of pixels, from tile `start` on, into `v[place][tile][c]`; `xs` ends with a pixel of zeros.
    pub fn transformed<F: Float>(&self, xs: &[F], start: usize, tiles: usize, v: &mut [F]) {
        let (c, plane) = (self.channels, tiles * self.channels);
        for tile in 0..tiles {
            let from = self.places::<4, 16>(start + tile, xs.len() - c);
            pixels(xs, &from, c, plane, &mut v[tile * c..]);
        }
    }

    /// Transforms `tiles` tiles of gradients, from tile `start` on, into `z[place][tile][o]`; `ys` ends with a pixel of zeros.
    pub fn spread<F: Float>(&self, ys: &[F], start: usize, tiles: usize, z: &mut [F]) {
        let (o, plane) = (self.channels, tiles * self.channels);
        for tile in 0..tiles {
            let from = self.places::<2, 4>(start + tile, ys.len() - o);
            outer(ys, &from, o, plane, &mut z[tile * o..]);
        }
    }

    /// Writes the pixels of `tiles` tiles, from tile `start` on, from `m[place][tile][o]`; pixels outside a picture are skipped.
    pub fn gathered<F: Float>(&self, m: &[F], start: usize, tiles: usize, ys: &mut [F]) {
        let (o, plane) = (self.channels, tiles * self.channels);
        for tile in 0..tiles {
            let to = self.places::<2, 4>(start + tile, usize::MAX);
            inner(&m[tile * o..], plane, o, &to, ys);
        }
    }
}
