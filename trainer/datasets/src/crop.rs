//! The part of a picture that becomes a sample, by the rules of torchvision.
//!
//! ```text
//! test      the shorter side resized to `resize`, then the square in the centre        Resize, CenterCrop
//! training  a rectangle of random area, shape and place, resized to the square         RandomResizedCrop
//! ```
//!
//! Sizes are in pixels. torchvision rounds as Python does: to the nearest, halves to the even number.

use rand::Rng;
use rand::rngs::ChaCha8Rng;

/// A part of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rectangle {
    /// The number of columns to the left of the part.
    pub left: usize,
    /// The number of rows above the part.
    pub top: usize,
    /// The number of columns of the part.
    pub width: usize,
    /// The number of rows of the part.
    pub height: usize,
}

/// A square of a resized part of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The part of the picture that is resized.
    pub source: Rectangle,
    /// The width and height that it is resized to.
    pub size: (usize, usize),
    /// The columns to the left of the square and the rows above it, in the resized part.
    pub corner: (usize, usize),
    /// The side of the square.
    pub side: usize,
}

/// The random rectangles of training pictures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomCrop {
    /// The least and the greatest area, relative to the picture's.
    pub scale: [f64; 2],
    /// The least and the greatest ratio of width to height.
    pub ratio: [f64; 2],
}

/// Rounds as Python's `round`.
fn rounded(value: f64) -> usize {
    value.round_ties_even() as usize
}

impl View {
    /// The square of `side` pixels in the centre of a picture whose shorter side is resized to `resize`, which is `side` or more.
    pub fn centre((width, height): (usize, usize), resize: usize, side: usize) -> View {
        let short = width.min(height);
        let size = (resize * width / short, resize * height / short);
        let corner = |length: usize| rounded((length - side) as f64 / 2.0);
        let source = Rectangle { left: 0, top: 0, width, height };
        View { source, size, corner: (corner(size.0), corner(size.1)), side }
    }

    /// A rectangle resized to a square of `side` pixels.
    pub fn of(source: Rectangle, side: usize) -> View {
        View { source, size: (side, side), corner: (0, 0), side }
    }
}

impl RandomCrop {
    /// Draws a rectangle of a picture. After ten rectangles that are wider or higher than the picture, the result is the largest
    /// rectangle in the centre whose ratio is allowed.
    pub fn draw(&self, (width, height): (usize, usize), random: &mut ChaCha8Rng) -> Rectangle {
        let mut uniform = |[low, high]: [f64; 2]| {
            let unit = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            low + (high - low) * unit
        };
        let ratios = self.ratio.map(libm::log);
        for _ in 0..10 {
            let area = (width * height) as f64 * uniform(self.scale);
            let ratio = libm::exp(uniform(ratios));
            let (wide, high) = (rounded((area * ratio).sqrt()), rounded((area / ratio).sqrt()));
            if (1..=width).contains(&wide) && (1..=height).contains(&high) {
                let mut place = |free: usize| ((free + 1) as f64 * uniform([0.0, 1.0])) as usize;
                let top = place(height - high);
                return Rectangle { left: place(width - wide), top, width: wide, height: high };
            }
        }
        self.centre(width, height)
    }

    /// The largest rectangle in the centre whose ratio is allowed.
    fn centre(&self, width: usize, height: usize) -> Rectangle {
        let ratio = width as f64 / height as f64;
        let (wide, high) = match self.ratio {
            [least, _] if ratio < least => (width, rounded(width as f64 / least)),
            [_, most] if ratio > most => (rounded(height as f64 * most), height),
            _ => (width, height),
        };
        let (wide, high) = (wide.clamp(1, width), high.clamp(1, height));
        Rectangle { left: (width - wide) / 2, top: (height - high) / 2, width: wide, height: high }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    const USUAL: RandomCrop = RandomCrop { scale: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0] };

    fn drawn(crop: RandomCrop, sides: (usize, usize), seed: u64) -> Rectangle {
        crop.draw(sides, &mut ChaCha8Rng::seed_from_u64(seed))
    }

    /// Values by hand: 500 x 375 becomes 341 x 256, from which (341 - 224) / 2 = 58.5 columns are left out, rounded to the even 58.
    #[test]
    fn the_centre_is_that_of_torchvision() {
        let view = View::centre((500, 375), 256, 224);
        assert_eq!((view.size, view.corner), ((341, 256), (58, 16)));
        assert_eq!(view.source, Rectangle { left: 0, top: 0, width: 500, height: 375 });
        let upright = View::centre((3, 1000), 4, 4);
        assert_eq!((upright.size, upright.corner), ((4, 1333), (0, 664)));
    }

    #[test]
    fn rectangles_have_the_areas_and_ratios_that_are_allowed() {
        let mut areas = Vec::new();
        for seed in 0..2000 {
            let Rectangle { left, top, width, height } = drawn(USUAL, (500, 375), seed);
            assert!(left + width <= 500 && top + height <= 375);
            let (area, ratio) = ((width * height) as f64 / 187_500.0, width as f64 / height as f64);
            // A side is rounded by half a pixel, of 106 pixels at least.
            assert!((0.079..=1.0).contains(&area) && (0.742..=1.347).contains(&ratio), "{area}, {ratio}");
            areas.push(area);
        }
        areas.sort_by(f64::total_cmp);
        // Large rectangles fit less often, so the median is below that of the draws, 0.54.
        assert!((0.40..0.54).contains(&areas[1000]), "{}", areas[1000]);
        assert_eq!(drawn(USUAL, (500, 375), 7), drawn(USUAL, (500, 375), 7));
        assert!(drawn(USUAL, (500, 375), 7) != drawn(USUAL, (500, 375), 8));
    }

    /// Every place of a rectangle in its picture is equally likely, the first and the last too.
    #[test]
    fn rectangles_lie_anywhere() {
        let crop = RandomCrop { scale: [0.25, 0.25], ratio: [1.0, 1.0] };
        let mut places = [[0; 3]; 2];
        for seed in 0..900 {
            let Rectangle { left, top, width, height } = drawn(crop, (4, 4), seed);
            assert_eq!((width, height), (2, 2));
            places[0][left] += 1;
            places[1][top] += 1;
        }
        // 300 each on average; 240 is four standard deviations away.
        assert!(places.as_flattened().iter().all(|&times| times > 240), "{places:?}");
    }

    /// No rectangle of half the area of a strip of 300 x 10 has a ratio up to 4/3: after ten tries the centre is taken, 13 x 10.
    #[test]
    fn a_strip_gives_its_centre() {
        let crop = RandomCrop { scale: [0.5, 1.0], ..USUAL };
        let wide = Rectangle { left: 143, top: 0, width: 13, height: 10 };
        let high = Rectangle { left: 0, top: 143, width: 10, height: 13 };
        assert_eq!((drawn(crop, (300, 10), 1), drawn(crop, (10, 300), 1)), (wide, high));
        let whole = Rectangle { left: 0, top: 0, width: 9, height: 10 };
        assert_eq!(drawn(RandomCrop { scale: [2.0, 2.0], ..USUAL }, (9, 10), 1), whole);
    }
}
