//! Pictures cut into tiles, and where the pixels of a tile lie.

use super::transforms::{inner, outer, pixels};
use crate::nn::Float;

/// Pictures of so many channels, tile by tile.
#[derive(Clone, Copy)]
pub(super) struct Pictures {
    pub channels: usize,
    pub picture: (usize, usize),
    /// Where the first pixel of tile (0, 0) lies, before the picture's first.
    pub before: usize,
    /// Tiles of a picture.
    pub tiles: (usize, usize),
}

impl Pictures {
    pub fn pixels(&self) -> usize {
        self.picture.0 * self.picture.1
    }

    /// Tiles of a picture.
    pub fn each(&self) -> usize {
        self.tiles.0 * self.tiles.1
    }

    /// Where the `SIDE` x `SIDE` pixels of a tile lie in channel-last pictures; outside a picture, at `outside`.
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

    /// `v[place][tile][c]` of tiles from `start` on; `xs` ends with a pixel of zeros.
    pub fn transformed<F: Float>(&self, xs: &[F], start: usize, tiles: usize, v: &mut [F]) {
        let (c, plane) = (self.channels, tiles * self.channels);
        for tile in 0..tiles {
            let from = self.places::<4, 16>(start + tile, xs.len() - c);
            pixels(xs, &from, c, plane, &mut v[tile * c..]);
        }
    }

    /// `z[place][tile][o]` of the gradients of tiles from `start` on; `ys` ends with a pixel of zeros.
    pub fn spread<F: Float>(&self, ys: &[F], start: usize, tiles: usize, z: &mut [F]) {
        let (o, plane) = (self.channels, tiles * self.channels);
        for tile in 0..tiles {
            let from = self.places::<2, 4>(start + tile, ys.len() - o);
            outer(ys, &from, o, plane, &mut z[tile * o..]);
        }
    }

    /// The pixels of tiles from `start` on, from `m[place][tile][o]`; those outside a picture are left out.
    pub fn gathered<F: Float>(&self, m: &[F], start: usize, tiles: usize, ys: &mut [F]) {
        let (o, plane) = (self.channels, tiles * self.channels);
        for tile in 0..tiles {
            let to = self.places::<2, 4>(start + tile, usize::MAX);
            inner(&m[tile * o..], plane, o, &to, ys);
        }
    }
}
