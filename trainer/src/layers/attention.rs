//! Causal self-attention over queries, keys and values side by side.

use super::{Backward, Forward, Layer, LayerCost, Operation};
use crate::amp::Cast;
use allfold_kernels::nn::{Attention as Shape, Float};

/// An attention: from `[T, 3 C]` to `[T, C]` per sample.
pub struct Attention(Shape);

impl Attention {
    /// An attention of this shape.
    pub fn new(shape: Shape) -> Attention {
        Attention(shape)
    }
}

impl<F: Float> Layer<F> for Attention {
    fn inputs(&self) -> usize {
        3 * self.0.positions * self.0.width
    }

    fn outputs(&self) -> usize {
        self.0.positions * self.0.width
    }

    fn operation(&self) -> Operation {
        let Shape { positions, width, heads, .. } = self.0;
        Operation::Attention { positions, width, heads }
    }

    fn cast(&self) -> Cast {
        Cast::Narrow
    }

    fn saved(&self, n: usize) -> (usize, usize) {
        (n * self.0.heads * self.0.positions, 0)
    }

    fn forward(&self, pass: Forward<F>) {
        self.0.forward(pass.x, &mut pass.saved.values, pass.y);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        self.0.backward(pass.x, &pass.saved.values, pass.y, pass.dy, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let [forward, input] = self.0.cost::<F>(n);
        LayerCost { forward, evaluate: forward, input, ..LayerCost::default() }
    }
}
