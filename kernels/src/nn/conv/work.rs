//! The work buffer that a convolution's passes share, and checks of buffer lengths.

use super::Conv2dShape;
use super::winograd::Winograd;

impl Conv2dShape {
    /// The number of elements of `work` for a batch of `n`: the transformed weight, or padded pictures or patches plus one copy of
    /// the weight.
    pub fn work(&self, n: usize) -> usize {
        if let Some(winograd) = Winograd::of(self) {
            return winograd.weights();
        }
        let gradient = match self.transposed() {
            Some((_, (height, width))) => self.outputs * height * width,
            None => self.patch() * self.pixels(),
        };
        n * gradient.max(self.padded()) + self.weights()
    }

    pub(super) fn lengths<F>(&self, n: usize, x: &[F], y: &[F], w: &[F], work: &[F]) {
        let want = (n * self.input(), n * self.outputs * self.pixels(), self.weights());
        assert_eq!((x.len(), y.len(), w.len()), want, "input, output and weight of {n} samples");
        let needed = Winograd::of(self).map_or(n * self.padded(), |winograd| winograd.weights());
        assert!(self.padding == 0 || work.len() >= needed, "`work` is short: {} for {n} samples", work.len());
    }
}
