//! A gated linear unit: each row's gates and values side by side become half as many numbers.

use super::{Backward, Forward, Layer, LayerCost, LayerOperation, LayerTraits};
use allfold_kernels::nn::{Float, SwigluShape as Shape};

/// The gated linear unit over `rows` rows per sample, from twice `width` numbers to `width`.
pub struct Swiglu {
    rows: usize,
    shape: Shape,
}

impl Swiglu {
    /// The unit with `width` outputs in each of `rows` rows per sample.
    pub fn new(rows: usize, width: usize) -> Swiglu {
        Swiglu { rows, shape: Shape { width } }
    }
}

impl<F: Float> Layer<F> for Swiglu {
    fn inputs(&self) -> usize {
        2 * self.rows * self.shape.width
    }

    fn outputs(&self) -> usize {
        self.rows * self.shape.width
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::Swiglu { rows: self.rows, width: self.shape.width }
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { free_output: true, ..LayerTraits::default() }
    }

    fn forward(&self, pass: Forward<F>) {
        self.shape.forward(pass.x, pass.y);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        self.shape.backward(pass.x, pass.dy, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let [forward, input] = self.shape.costs::<F>(n * self.rows);
        LayerCost { forward, evaluate: forward, input, ..LayerCost::default() }
    }
}
