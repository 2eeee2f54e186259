//! Pictures resized by a triangle of weights, which is widened when they shrink (antialiasing), as Pillow's `BILINEAR` does.
//!
//! ```text
//! pixels   0   1   2   3                  four pixels become two; the triangle is two pixels wide to either side
//! output 0 | 3/7 3/7 1/7                  its centre lies between pixels 0 and 1
//! output 1 |     1/7 3/7 3/7
//! ```
//!
//! Rows are resized first, then columns; bytes are rounded after each pass. Weights are integers of 22 fractional bits, so the bytes
//! are those of Pillow up to 12, on any machine; Pillow 13 resizes columns first if that is cheaper, which moves a byte by 1 at most.
//! `benches/peers/pictures.py` compares both. Cost: (weights per pixel) x 3 multiplications per output byte of each pass.

use crate::crop::View;

/// The fractional bits of a weight.
const BITS: u32 = 22;
/// One half, with which sums begin, so that they are rounded.
const HALF: i32 = 1 << (BITS - 1);

/// The weights by which lines of `source` pixels become a part of lines of another length.
struct Filter {
    /// For each output pixel, the first source pixel and the number of source pixels that it is a mean of.
    spans: Vec<(usize, usize)>,
    /// The weights of all spans, one after another.
    weights: Vec<i32>,
}

impl Filter {
    /// The filter of the `count` output pixels from `first` on, of lines that are resized from `source` to `size` pixels.
    fn new(source: usize, size: usize, first: usize, count: usize) -> Filter {
        let scale = source as f64 / size as f64;
        let support = scale.max(1.0);
        let (mut spans, mut weights, mut exact) = (Vec::with_capacity(count), Vec::new(), Vec::new());
        for pixel in first..first + count {
            let centre = (pixel as f64 + 0.5) * scale;
            // A float below 0 becomes 0.
            let from = (centre - support + 0.5) as usize;
            let to = ((centre + support + 0.5) as usize).min(source);
            exact.clear();
            exact.extend((from..to).map(|at| {
                let away = (at as f64 - centre + 0.5) * (1.0 / support);
                (1.0 - away.abs()).max(0.0)
            }));
            let sum: f64 = exact.iter().sum();
            weights.extend(
                exact.iter().map(|weight| (0.5 + weight * (1.0 / sum) * f64::from(1 << BITS)) as i32),
            );
            spans.push((from, to - from));
        }
        Filter { spans, weights }
    }

    /// The first source pixel and the number of source pixels that any output pixel needs.
    fn reach(&self) -> (usize, usize) {
        let first = self.spans.first().map_or(0, |span| span.0);
        let last = self.spans.last().map_or(0, |span| span.0 + span.1);
        (first, last - first)
    }

    /// Each output pixel's first source pixel and its weights.
    fn means(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let mut rest = &self.weights[..];
        self.spans.iter().map(move |&(first, count)| {
            let (weights, others) = rest.split_at(count);
            rest = others;
            (first, weights)
        })
    }
}

/// The byte of a sum of weighted bytes. Weights are not negative, so no sum is.
fn byte(sum: i32) -> u8 {
    (sum >> BITS).min(255) as u8
}

/// Resizes a line of RGB pixels. The loops are plain, so that they are fast without optimisation across the units of the crate.
fn row(line: &[u8], filter: &Filter, to: &mut [u8]) {
    for (to, (first, weights)) in to.as_chunks_mut::<3>().0.iter_mut().zip(filter.means()) {
        let (mut red, mut green, mut blue) = (HALF, HALF, HALF);
        for (pixel, &weight) in line[3 * first..].as_chunks::<3>().0.iter().zip(weights) {
            red += i32::from(pixel[0]) * weight;
            green += i32::from(pixel[1]) * weight;
            blue += i32::from(pixel[2]) * weight;
        }
        *to = [byte(red), byte(green), byte(blue)];
    }
}

/// The square that `view` takes of a picture `pixels[row][column][colour]` with `width` columns, as `[row][column][colour]`.
///
/// # Panics
/// If the source or the square is not within the picture.
pub fn square(pixels: &[u8], width: usize, view: &View) -> Vec<u8> {
    let View { source, size, corner, side } = *view;
    let across = Filter::new(source.width, size.0, corner.0, side);
    let down = Filter::new(source.height, size.1, corner.1, side);
    let (first, count) = down.reach();
    let length = side * 3;
    let mut rows = vec![0; count * length];
    for (at, to) in (source.top + first..).zip(rows.chunks_exact_mut(length)) {
        row(&pixels[3 * (at * width + source.left)..][..3 * source.width], &across, to);
    }
    let (mut square, mut sums) = (vec![0; side * length], vec![0i32; length]);
    for (to, (from, weights)) in square.chunks_exact_mut(length).zip(down.means()) {
        sums.fill(HALF);
        for (line, &weight) in rows[(from - first) * length..].chunks_exact(length).zip(weights) {
            for (sum, &byte) in sums.iter_mut().zip(line) {
                *sum += i32::from(byte) * weight;
            }
        }
        for (to, &sum) in to.iter_mut().zip(&sums) {
            *to = byte(sum);
        }
    }
    square
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crop::Rectangle;

    /// One row of grey pixels, resized to `size` columns of which `side` are taken from `corner` on; the single row is kept.
    fn line(pixels: &[u8], size: usize, corner: usize, side: usize) -> Vec<u8> {
        let rgb: Vec<u8> = pixels.iter().flat_map(|&grey| [grey, 255 - grey, 7]).collect();
        let source = Rectangle { left: 0, top: 0, width: pixels.len(), height: 1 };
        let view = View { source, size: (size, side), corner: (corner, 0), side };
        let square = square(&rgb, pixels.len(), &view);
        let rows: Vec<&[u8]> = square.chunks_exact(side * 3).collect();
        assert!(rows.iter().all(|row| row == &rows[0]), "a single row is repeated");
        for pixel in rows[0].chunks_exact(3) {
            assert!(pixel[2] == 7 && pixel[0].abs_diff(255 - pixel[1]) <= 1, "{pixel:?}");
        }
        rows[0].iter().step_by(3).copied().collect()
    }

    /// Means by hand. 4 to 2: weights 3/7, 3/7, 1/7. 2 to 4: weights 3/4 and 1/4 between the pixels, and no change outside them.
    #[test]
    fn pixels_are_weighted_means() {
        assert_eq!(line(&[7, 14, 21, 70], 2, 0, 2), [12, 41]);
        assert_eq!(line(&[0, 100], 4, 0, 4), [0, 25, 75, 100]);
        assert_eq!(line(&[0, 100], 4, 1, 2), [25, 75]);
        assert_eq!(line(&[10, 20, 250], 3, 0, 3), [10, 20, 250]);
        // 3 to 1: weights 2/7, 3/7, 2/7.
        assert_eq!(line(&[70, 70, 0], 1, 0, 1), [50]);
        assert_eq!(line(&[255; 9], 4, 0, 4), [255; 4]);
        // 1 to 3 repeats the pixel.
        assert_eq!(line(&[9], 3, 0, 3), [9; 3]);
    }

    /// Rows and columns of a part are resized alike, and pixels outside the part have no influence.
    #[test]
    fn a_part_is_resized_by_itself() {
        let inside = |x: usize, y: usize| (2..6).contains(&x) && (1..5).contains(&y);
        let grey = |x: usize, y: usize| if inside(x, y) { [7, 14, 21, 70][x - 2] } else { 255 };
        let picture: Vec<u8> = (0..6).flat_map(|y| (0..8).flat_map(move |x| [grey(x, y); 3])).collect();
        let turned: Vec<u8> = (0..8).flat_map(|y| (0..6).flat_map(move |x| [grey(y, x); 3])).collect();
        let source = Rectangle { left: 2, top: 1, width: 4, height: 4 };
        let flat = |square: Vec<u8>| -> Vec<u8> { square.into_iter().step_by(3).collect() };
        assert_eq!(flat(square(&picture, 8, &View::of(source, 2))), [12, 41, 12, 41]);
        let source = Rectangle { left: 1, top: 2, width: 4, height: 4 };
        assert_eq!(flat(square(&turned, 6, &View::of(source, 2))), [12, 12, 41, 41]);
    }
}
