//! Root mean square normalisation of each row, with a weight.

use super::Cast;
use super::{Backward, Forward, Init, Layer, LayerCost, LayerOperation, LayerTraits, Tensor};
use allfold_kernels::nn::{Float, OpCost, RmsNormShape as Shape};

/// A root mean square norm over `rows` rows per sample.
pub struct RmsNorm {
    rows: usize,
    shape: Shape,
}

impl RmsNorm {
    /// A norm over `rows` rows of `width` numbers per sample; `eps` is added to each row's mean square.
    pub fn new(rows: usize, width: usize, eps: f64) -> RmsNorm {
        RmsNorm { rows, shape: Shape { width, eps } }
    }
}

impl<F: Float> Layer<F> for RmsNorm {
    fn inputs(&self) -> usize {
        self.rows * self.shape.width
    }

    fn operation(&self) -> LayerOperation {
        LayerOperation::RmsNorm { rows: self.rows, width: self.shape.width, eps: self.shape.eps }
    }

    fn traits(&self) -> LayerTraits {
        LayerTraits { cast: Cast::Full, free_output: true, ..LayerTraits::default() }
    }

    fn params(&self) -> Vec<Tensor> {
        vec![Tensor::new("weight", &[self.shape.width], Init::Constant(1.0))]
    }

    fn saved(&self, n: usize) -> (usize, usize) {
        (n * self.rows, 0)
    }

    fn forward(&self, pass: Forward<F>) {
        self.shape.forward(pass.x, pass.params, &mut pass.saved.values, pass.y);
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        self.shape.backward_params(pass.x, &pass.saved.values, pass.dy, grads);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        self.shape.backward_input(pass.x, pass.params, &pass.saved.values, pass.dy, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let [forward, params, input] = self.shape.cost::<F>(n * self.rows);
        LayerCost { sums: OpCost::default(), forward, evaluate: forward, params, input }
    }
}
