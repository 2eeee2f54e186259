//! The first position of a sequence, whose row represents the whole sequence, as BERT's `[CLS]`.

use super::{Backward, Forward, Layer, LayerCost, LayerTraits};
use allfold_kernels::nn::{Float, OpCost};

/// Takes the first of `positions` rows of `width` numbers per sample.
pub struct FirstPosition {
    positions: usize,
    width: usize,
}

impl FirstPosition {
    /// The layer over samples of this form.
    pub fn new(positions: usize, width: usize) -> FirstPosition {
        FirstPosition { positions, width }
    }
}

impl<F: Float> Layer<F> for FirstPosition {
    fn inputs(&self) -> usize {
        self.positions * self.width
    }

    fn outputs(&self) -> usize {
        self.width
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { free_output: true, ..LayerTraits::default() }
    }

    fn forward(&self, pass: Forward<F>) {
        let samples = pass.x.chunks_exact(self.positions * self.width);
        for (x, y) in samples.zip(pass.y.chunks_exact_mut(self.width)) {
            y.copy_from_slice(&x[..self.width]);
        }
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        let samples = dx.chunks_exact_mut(self.positions * self.width);
        for (dx, dy) in samples.zip(pass.dy.chunks_exact(self.width)) {
            let (first, rest) = dx.split_at_mut(self.width);
            first.copy_from_slice(dy);
            rest.fill(F::ZERO);
        }
    }

    fn cost(&self, n: usize) -> LayerCost {
        let forward = OpCost::launch(0, 2 * n * self.width, size_of::<F>());
        let input = OpCost::launch(0, n * self.width * (self.positions + 1), size_of::<F>());
        LayerCost { forward, evaluate: forward, input, ..LayerCost::default() }
    }
}
