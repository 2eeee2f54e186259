//! Convolution by a 3 x 3 kernel with stride 1, after S. Winograd: the 4 x 4 pixels under 2 x 2 outputs, and the kernel,
//! are transformed so that 16 products take the place of 36 (A. Lavin and S. Gray, "Fast Algorithms for Convolutional
//! Neural Networks", CVPR 2016).
//!
//! ```text
//! forward    pixels d [4 x 4]      V = B' d B                M[p] = V[p] . U[p]  for each of 16 places p     y = A' M A
//!            kernel g [3 x 3]      U = G g G'
//! weights    Z = A dy A'           P[p] = V[p]^T . Z[p]                                                      dg = G' P G
//! input      V of dy, and U of the flipped kernel: U with its first and last rows, and columns, exchanged
//!
//!      | 1  0 -1  0 |          | 1   0   0  |
//! B' = | 0  1  1  0 |      G = | 1/2 1/2 1/2|      A' = | 1  1  1  0 |
//!      | 0 -1  1  0 |          | 1/2-1/2 1/2|           | 0  1 -1 -1 |
//!      | 0  1  0 -1 |          | 0   0   1  |
//! ```
//!
//! Pixels are turned channel-last on the way, so that a transform works on whole vectors of channels whatever the
//! picture's size. A block of tiles goes through all of it while it is in the cache.
//!
//! What an element is summed from depends on neither the blocks of a batch that a thread takes nor their number: tiles
//! are independent going forward, and the gradient of the weights goes through blocks that follow from the shape alone.
#![allow(clippy::needless_range_loop, reason = "rows and columns of small matrices have numbers")]

use super::{Conv2d, turn};
use crate::nn::Float;
use crate::nn::gemm::{Left, Lines, Place, Walk, gemm, room, transpose};
use crate::nn::simd::vectorised;
use crate::nn::team::{share, share_rows, threads};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Channels that are transformed together.
const VECTOR: usize = 16;
/// Places of a transformed tile.
const PLACES: usize = 16;
/// Fewer channels than this on either side do not repay the transforms.
const LEAST: usize = 64;
/// Nor do pictures of less than this on either side: the weight's transform is then most of the work.
const SIDE: usize = 4;
/// Elements of transformed tiles that a block may have, in and out together: about the nearest large cache.
const BLOCK: usize = 1 << 18;

/// Pictures of so many channels, tile by tile.
#[derive(Clone, Copy)]
struct Pictures {
    channels: usize,
    picture: (usize, usize),
    /// Where the first pixel of tile (0, 0) lies, before the picture's first.
    before: usize,
    /// Tiles of a picture.
    tiles: (usize, usize),
}

/// How a convolution's output is cut into tiles.
#[derive(Clone, Copy)]
pub(super) struct Winograd {
    inputs: Pictures,
    outputs: Pictures,
}

impl Winograd {
    /// For the convolutions that it pays for.
    pub fn of(shape: &Conv2d) -> Option<Winograd> {
        let Conv2d { inputs, outputs, picture, kernel, stride, padding, groups } = *shape;
        let pays = |channels: usize| channels >= LEAST && channels.is_multiple_of(VECTOR);
        if (kernel, stride, groups) != (3, 1, 1) || padding > 2 || !pays(inputs) || !pays(outputs) {
            return None;
        }
        let (rows, cols) = shape.output_picture();
        if rows.min(cols) < SIDE {
            return None;
        }
        let tiles = (rows.div_ceil(2), cols.div_ceil(2));
        Some(Winograd {
            inputs: Pictures { channels: inputs, picture, before: padding, tiles },
            outputs: Pictures { channels: outputs, picture: (rows, cols), before: 0, tiles },
        })
    }

    /// Elements of the transformed weight.
    pub fn weights(&self) -> usize {
        PLACES * self.inputs.channels * self.outputs.channels
    }

    /// The transformed weight, `u[place][c][o]`.
    pub fn transform<F: Float>(&self, w: &[F], u: &mut [F]) {
        let (c, o) = (self.inputs.channels, self.outputs.channels);
        let parts = threads().min(c);
        let cut = |part: usize| c * part / parts;
        let mut planes: Vec<&mut [F]> = u.chunks_exact_mut(c * o).collect();
        let piece = |part: usize| {
            let length = (cut(part + 1) - cut(part)) * o;
            let heads = planes.iter_mut().map(|plane| plane.split_off_mut(..length).unwrap_or_default());
            Mutex::new(heads.collect::<Vec<_>>())
        };
        let pieces: Vec<_> = (0..parts).map(piece).collect();
        room(w.len(), |turned| {
            turn(w, 9 * c, turned);
            share(parts, |part| {
                let mut piece = pieces[part].lock().unwrap_or_else(PoisonError::into_inner);
                kernels(&turned[cut(part) * 9 * o..cut(part + 1) * 9 * o], o, &mut piece);
            });
        });
    }

    /// `x` to `y`, by the transformed weight.
    pub fn forward<F: Float>(&self, x: &[F], u: &[F], y: &mut [F]) {
        let (c, o) = (self.inputs.channels, self.outputs.channels);
        let right = |place: usize| Lines::matrix(&u[place * c * o..(place + 1) * c * o], o);
        convolve(self.inputs, self.outputs, x, right, y);
    }

    /// The gradient of the input, by the transformed weight of the forward pass.
    pub fn backward_input<F: Float>(&self, dy: &[F], u: &[F], dx: &mut [F]) {
        let (c, o) = (self.inputs.channels, self.outputs.channels);
        let padding = 2 - self.inputs.before;
        let tiles = (self.inputs.picture.0.div_ceil(2), self.inputs.picture.1.div_ceil(2));
        let from = Pictures { before: padding, tiles, ..self.outputs };
        let to = Pictures { before: 0, tiles, ..self.inputs };
        let right = |place: usize| Lines::turned(&u[flipped(place) * c * o..][..c * o], o);
        convolve(from, to, dy, right, dx);
    }

    /// The gradient of the weight, replaced.
    pub fn backward_params<F: Float>(&self, x: &[F], dy: &[F], dw: &mut [F]) {
        let o = self.outputs.channels;
        room(dw.len(), |turned| {
            // Each thread has some channels of the input, and transforms all of the output for itself.
            share_rows(turned, VECTOR * 9 * o, |vectors, turned| {
                let channels = vectors.start * VECTOR..vectors.end * VECTOR;
                let plane = channels.len() * o;
                room(PLACES * plane, |p| {
                    self.weight_sums((x, channels), dy, p);
                    gradients(p, plane, o, turned);
                });
            });
            turn(turned, o, dw);
        });
    }

    /// `p[place][c][o]` for some channels c: sums over all tiles, one block of them after another.
    fn weight_sums<F: Float>(&self, (x, channels): (&[F], Range<usize>), dy: &[F], p: &mut [F]) {
        let (all, c, o) = (self.inputs.channels, channels.len(), self.outputs.channels);
        let from = Pictures { channels: c, ..self.inputs };
        let (pixels, out_pixels, each) = (from.pixels(), self.outputs.pixels(), from.each());
        let n = dy.len() / (o * out_pixels);
        // Blocks follow from the shape alone: the order of additions does.
        let (samples, most) = block(each, all + o);
        let sizes = [samples * pixels * c + c, samples * out_pixels * o + o, PLACES * most * c];
        room(sizes.iter().sum::<usize>() + PLACES * most * o, |rooms| {
            let (xs, rooms) = rooms.split_at_mut(sizes[0]);
            let (ys, rooms) = rooms.split_at_mut(sizes[1]);
            let (v, z) = rooms.split_at_mut(sizes[2]);
            for first in (0..n).step_by(samples) {
                let count = samples.min(n - first);
                let xs = turned(&x[first * all * pixels..], (all, channels.clone()), pixels, count, xs);
                let ys = turned(&dy[first * o * out_pixels..], (o, 0..o), out_pixels, count, ys);
                for start in (0..count * each).step_by(most) {
                    let tiles = most.min(count * each - start);
                    from.transformed(xs, start, tiles, v);
                    self.outputs.spread(ys, start, tiles, z);
                    for place in 0..PLACES {
                        let left = Left {
                            data: &v[place * tiles * c..(place + 1) * tiles * c],
                            row: |i| i,
                            walk: Walk { counts: [1, 1, tiles], steps: [0, 0, c] },
                        };
                        let right = Lines::matrix(&z[place * tiles * o..(place + 1) * tiles * o], o);
                        let out = &mut p[place * c * o..(place + 1) * c * o];
                        gemm((c, o), left, &right, (out, Place::matrix(o)), first + start > 0);
                    }
                }
            }
        });
    }
}

/// Some channels of the first `count` pictures of `x`, which has `all`, turned channel-last; then a pixel of zeros.
fn turned<'r, F: Float>(
    x: &[F],
    (all, channels): (usize, Range<usize>),
    pixels: usize,
    count: usize,
    to: &'r mut [F],
) -> &'r [F] {
    let c = channels.len();
    for (sample, to) in to.chunks_exact_mut(pixels * c).take(count).enumerate() {
        transpose(&x[(sample * all + channels.start) * pixels..], (pixels, c), pixels, to, c);
    }
    to[count * pixels * c..][..c].fill(F::ZERO);
    &to[..(count * pixels + 1) * c]
}

/// The place that a place of a flipped kernel was: of four rows, the first and the last are exchanged, and of columns.
fn flipped(place: usize) -> usize {
    let flip = |at: usize| if at.is_multiple_of(3) { 3 - at } else { at };
    4 * flip(place / 4) + flip(place % 4)
}

/// (Samples, tiles) of a block, where a sample has `each` tiles and a tile `channels`, in and out together.
fn block(each: usize, channels: usize) -> (usize, usize) {
    let tiles = (BLOCK / channels / 8 * 8).clamp(64, 256);
    (tiles.div_ceil(each), tiles)
}

/// Every picture of `x` to one of `y`; `right(place)` is the transformed weight there, one line per channel of `x`.
fn convolve<'a, F: Float>(
    from: Pictures,
    to: Pictures,
    x: &[F],
    right: impl Fn(usize) -> Lines<'a, F> + Sync,
    y: &mut [F],
) {
    let (c, o, each) = (from.channels, to.channels, from.each());
    let (pixels, out_pixels) = (from.pixels(), to.pixels());
    let n = y.len() / (o * out_pixels);
    let (samples, most) = block(each, c + o);
    let samples = samples.min(n.div_ceil(threads()));
    let most = most.min(samples * each);
    let sizes = [samples * pixels * c + c, samples * out_pixels * o, PLACES * most * c];
    share_rows(y, o * out_pixels, |range, y| {
        room(sizes.iter().sum::<usize>() + PLACES * most * o, |rooms| {
            let (xs, rooms) = rooms.split_at_mut(sizes[0]);
            let (ys, rooms) = rooms.split_at_mut(sizes[1]);
            let (v, m) = rooms.split_at_mut(sizes[2]);
            for (first, y) in range.step_by(samples).zip(y.chunks_mut(samples * o * out_pixels)) {
                let count = y.len() / (o * out_pixels);
                let xs = turned(&x[first * c * pixels..], (c, 0..c), pixels, count, xs);
                for start in (0..count * each).step_by(most) {
                    let tiles = most.min(count * each - start);
                    from.transformed(xs, start, tiles, v);
                    for place in 0..PLACES {
                        let left = Left {
                            data: &v[place * tiles * c..(place + 1) * tiles * c],
                            row: |i| i * c,
                            walk: Walk { counts: [1, 1, c], steps: [0, 0, 1] },
                        };
                        let out = &mut m[place * tiles * o..(place + 1) * tiles * o];
                        gemm((tiles, o), left, &right(place), (out, Place::matrix(o)), false);
                    }
                    to.gathered(m, start, tiles, ys);
                }
                for (sample, y) in y.chunks_exact_mut(o * out_pixels).enumerate() {
                    transpose(&ys[sample * out_pixels * o..], (o, out_pixels), o, y, out_pixels);
                }
            }
        });
    });
}

impl Pictures {
    fn pixels(&self) -> usize {
        self.picture.0 * self.picture.1
    }

    /// Tiles of a picture.
    fn each(&self) -> usize {
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
    fn transformed<F: Float>(&self, xs: &[F], start: usize, tiles: usize, v: &mut [F]) {
        let (c, plane) = (self.channels, tiles * self.channels);
        for tile in 0..tiles {
            let from = self.places::<4, 16>(start + tile, xs.len() - c);
            pixels(xs, &from, c, plane, &mut v[tile * c..]);
        }
    }

    /// `z[place][tile][o]` of the gradients of tiles from `start` on; `ys` ends with a pixel of zeros.
    fn spread<F: Float>(&self, ys: &[F], start: usize, tiles: usize, z: &mut [F]) {
        let (o, plane) = (self.channels, tiles * self.channels);
        for tile in 0..tiles {
            let from = self.places::<2, 4>(start + tile, ys.len() - o);
            outer(ys, &from, o, plane, &mut z[tile * o..]);
        }
    }

    /// The pixels of tiles from `start` on, from `m[place][tile][o]`; those outside a picture are left out.
    fn gathered<F: Float>(&self, m: &[F], start: usize, tiles: usize, ys: &mut [F]) {
        let (o, plane) = (self.channels, tiles * self.channels);
        for tile in 0..tiles {
            let to = self.places::<2, 4>(start + tile, usize::MAX);
            inner(&m[tile * o..], plane, o, &to, ys);
        }
    }
}

/// A vector of channels.
type Vector<F> = [F; VECTOR];

#[inline(always)]
fn load<F: Float>(from: &[F], at: usize) -> Vector<F> {
    let mut to = [F::ZERO; VECTOR];
    to.copy_from_slice(&from[at..at + VECTOR]);
    to
}

#[inline(always)]
fn put<F: Float>(to: &mut [F], at: usize, from: &Vector<F>) {
    to[at..at + VECTOR].copy_from_slice(from);
}

#[inline(always)]
fn plus<F: Float>(a: &Vector<F>, b: &Vector<F>) -> Vector<F> {
    let mut sum = *a;
    for i in 0..VECTOR {
        sum[i] = a[i] + b[i];
    }
    sum
}

#[inline(always)]
fn minus<F: Float>(a: &Vector<F>, b: &Vector<F>) -> Vector<F> {
    let mut sum = *a;
    for i in 0..VECTOR {
        sum[i] = a[i] - b[i];
    }
    sum
}

#[inline(always)]
fn half<F: Float>(a: &Vector<F>) -> Vector<F> {
    let mut product = *a;
    for i in 0..VECTOR {
        product[i] = a[i] * F::from_f64(0.5);
    }
    product
}

/// B' times four.
#[inline(always)]
fn under<F: Float>([a, b, c, d]: [&Vector<F>; 4]) -> [Vector<F>; 4] {
    [minus(a, c), plus(b, c), minus(c, b), minus(b, d)]
}

/// A' times four.
#[inline(always)]
fn two<F: Float>([a, b, c, d]: [&Vector<F>; 4]) -> [Vector<F>; 2] {
    [plus(&plus(a, b), c), minus(&minus(b, c), d)]
}

/// A times two, the last negated.
#[inline(always)]
fn four<F: Float>([a, b]: [&Vector<F>; 2]) -> [Vector<F>; 4] {
    [*a, plus(a, b), minus(a, b), minus(&[F::ZERO; VECTOR], b)]
}

/// G times three.
#[inline(always)]
fn grown<F: Float>([a, b, c]: [&Vector<F>; 3]) -> [Vector<F>; 4] {
    let ends = plus(a, c);
    [*a, half(&plus(&ends, b)), half(&minus(&ends, b)), *c]
}

/// G' times four.
#[inline(always)]
fn three<F: Float>([a, b, c, d]: [&Vector<F>; 4]) -> [Vector<F>; 3] {
    let (sum, difference) = (half(&plus(b, c)), half(&minus(b, c)));
    [plus(a, &sum), difference, plus(&sum, d)]
}

vectorised! {
    /// V of one tile, whose pixels lie at `from`, to `v`, `plane` elements from one place to the next.
    fn pixels<F>(xs: &[F], from: &[usize; 16], channels: usize, plane: usize, v: &mut [F]) {
        let mut c = 0;
        while c < channels {
            let mut rows = [[[F::ZERO; VECTOR]; 4]; 4];
            for j in 0..4 {
                let column = [
                    &load(xs, from[j] + c), &load(xs, from[4 + j] + c),
                    &load(xs, from[8 + j] + c), &load(xs, from[12 + j] + c),
                ];
                let [a, b, d, e] = under(column);
                (rows[0][j], rows[1][j], rows[2][j], rows[3][j]) = (a, b, d, e);
            }
            for i in 0..4 {
                let [a, b, d, e] = under([&rows[i][0], &rows[i][1], &rows[i][2], &rows[i][3]]);
                put(v, 4 * i * plane + c, &a);
                put(v, (4 * i + 1) * plane + c, &b);
                put(v, (4 * i + 2) * plane + c, &d);
                put(v, (4 * i + 3) * plane + c, &e);
            }
            c += VECTOR;
        }
    }

    /// The pixels of one tile, from `m`, `plane` elements from one place to the next, to where `to` says.
    fn inner<F>(m: &[F], plane: usize, channels: usize, to: &[usize; 4], ys: &mut [F]) {
        let mut c = 0;
        while c < channels {
            let mut rows = [[[F::ZERO; VECTOR]; 4]; 2];
            for j in 0..4 {
                let column = [
                    &load(m, j * plane + c), &load(m, (4 + j) * plane + c),
                    &load(m, (8 + j) * plane + c), &load(m, (12 + j) * plane + c),
                ];
                let [a, b] = two(column);
                (rows[0][j], rows[1][j]) = (a, b);
            }
            for i in 0..2 {
                let [a, b] = two([&rows[i][0], &rows[i][1], &rows[i][2], &rows[i][3]]);
                if to[2 * i] < usize::MAX {
                    put(ys, to[2 * i] + c, &a);
                }
                if to[2 * i + 1] < usize::MAX {
                    put(ys, to[2 * i + 1] + c, &b);
                }
            }
            c += VECTOR;
        }
    }

    /// Z of one tile, whose gradients lie at `from`, to `z`, `plane` elements from one place to the next.
    fn outer<F>(ys: &[F], from: &[usize; 4], channels: usize, plane: usize, z: &mut [F]) {
        let mut c = 0;
        while c < channels {
            let left = four([&load(ys, from[0] + c), &load(ys, from[2] + c)]);
            let right = four([&load(ys, from[1] + c), &load(ys, from[3] + c)]);
            for i in 0..4 {
                let [a, b, d, e] = four([&left[i], &right[i]]);
                put(z, 4 * i * plane + c, &a);
                put(z, (4 * i + 1) * plane + c, &b);
                put(z, (4 * i + 2) * plane + c, &d);
                put(z, (4 * i + 3) * plane + c, &e);
            }
            c += VECTOR;
        }
    }

    /// Lines of U at each place, one for each channel, from nine lines of the kernel each.
    fn kernels<F>(turned: &[F], outputs: usize, u: &mut [&mut [F]]) {
        let (lines, mut line) = (turned.len() / (9 * outputs), 0);
        while line < lines {
            let mut o = 0;
            while o < outputs {
                let at = line * 9 * outputs + o;
                let mut rows = [[[F::ZERO; VECTOR]; 4]; 3];
                for i in 0..3 {
                    let at = at + 3 * i * outputs;
                    rows[i] = grown([
                        &load(turned, at), &load(turned, at + outputs), &load(turned, at + 2 * outputs),
                    ]);
                }
                for j in 0..4 {
                    let column = grown([&rows[0][j], &rows[1][j], &rows[2][j]]);
                    for i in 0..4 {
                        put(u[4 * i + j], line * outputs + o, &column[i]);
                    }
                }
                o += VECTOR;
            }
            line += 1;
        }
    }

    /// Nine lines of `outputs` for each channel, from `p`, whose places are `plane` elements apart.
    fn gradients<F>(p: &[F], plane: usize, outputs: usize, turned: &mut [F]) {
        let (lines, mut line) = (plane / outputs, 0);
        while line < lines {
            let mut o = 0;
            while o < outputs {
                let at = line * outputs + o;
                let mut rows = [[[F::ZERO; VECTOR]; 3]; 4];
                for i in 0..4 {
                    let at = at + 4 * i * plane;
                    rows[i] = three([
                        &load(p, at), &load(p, at + plane), &load(p, at + 2 * plane), &load(p, at + 3 * plane),
                    ]);
                }
                for j in 0..3 {
                    let column = three([&rows[0][j], &rows[1][j], &rows[2][j], &rows[3][j]]);
                    for i in 0..3 {
                        put(turned, (line * 9 + 3 * i + j) * outputs + o, &column[i]);
                    }
                }
                o += VECTOR;
            }
            line += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::Team;
    use crate::nn::gradcheck::{dot, numbers};

    fn shape(picture: (usize, usize), padding: usize) -> Conv2d {
        Conv2d { inputs: 64, outputs: 80, picture, kernel: 3, stride: 1, padding, groups: 1 }
    }

    /// Forward by Winograd's products and by the definition. A convolution is linear in its input and in its weight, so
    /// both gradients are held against it in directions that are drawn.
    #[test]
    fn equals_the_definition_and_its_gradients() {
        let wide = [((4, 4), 1, 3), ((5, 7), 1, 2), ((6, 7), 0, 2), ((4, 3), 2, 2), ((12, 12), 1, 9)];
        for (picture, padding, n) in wide {
            let s = shape(picture, padding);
            assert!(Winograd::of(&s).is_some());
            let (rows, cols) = s.output_picture();
            let (x, w) = (numbers(n * s.input(), 1), numbers(s.weights(), 2));
            let (dx, dw) = (numbers(x.len(), 3), numbers(w.len(), 4));
            let dy = numbers(n * s.outputs * rows * cols, 5);
            let mut work = vec![7.0; s.work(n)];
            let (mut y, mut gx, mut gw) = (vec![9.0; dy.len()], vec![9.0; x.len()], vec![9.0; w.len()]);
            s.forward(n, &x, &w, &mut work, &mut y);
            s.backward_params(n, &x, &mut work, &dy, &mut gw);
            s.backward_input(n, &w, &dy, &mut work, &mut gx);
            let want = super::super::tests::direct(&s, n, &x, &w);
            assert!(y.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-11), "{picture:?} {padding}");
            let near = |a: f64, b: f64| (a - b).abs() < 1e-9 * (1.0 + b.abs());
            let by_x = dot(&super::super::tests::direct(&s, n, &dx, &w), &dy);
            assert!(near(dot(&gx, &dx), by_x), "{picture:?} {padding}: {} {by_x}", dot(&gx, &dx));
            let by_w = dot(&super::super::tests::direct(&s, n, &x, &dw), &dy);
            assert!(near(dot(&gw, &dw), by_w), "{picture:?} {padding}: {} {by_w}", dot(&gw, &dw));
        }
    }

    #[test]
    fn the_same_bits_on_any_number_of_threads_and_near_f64() {
        fn all<F: Float>(threads: usize) -> Vec<F> {
            let (s, n) = (shape((8, 8), 1), 35);
            let drawn = |count, seed| numbers(count, seed).into_iter().map(F::from_f64).collect::<Vec<F>>();
            let (x, w, dy) = (drawn(n * s.input(), 1), drawn(s.weights(), 2), drawn(n * 80 * 64, 3));
            let mut work = vec![F::ONE; s.work(n)];
            let (mut y, mut dx, mut dw) =
                (vec![F::ONE; dy.len()], vec![F::ONE; x.len()], vec![F::ONE; w.len()]);
            Team::new(threads).enter(|| {
                s.forward(n, &x, &w, &mut work, &mut y);
                s.backward_params(n, &x, &mut work, &dy, &mut dw);
                s.backward_input(n, &w, &dy, &mut work, &mut dx);
            });
            [y, dx, dw].concat()
        }
        let (exact, want) = (all::<f64>(1), all::<f32>(1));
        assert!([2, 3].iter().all(|&threads| all::<f32>(threads) == want));
        let worst = exact.iter().zip(&want).map(|(a, &b)| (a - f64::from(b)).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-3, "{worst}");
    }
}
