//! Layer normalisation of each row, with a weight and a bias.

use super::Cast;
use super::{Backward, Forward, Init, Layer, LayerCost, LayerOperation, Tensor};
use allfold_kernels::nn::{Float, LayerNormShape as Shape, OpCost};

/// A layer norm over `rows` rows per sample.
pub struct LayerNorm {
    rows: usize,
    shape: Shape,
}

impl LayerNorm {
    /// A layer norm over `rows` rows of `width` numbers per sample.
    pub fn new(rows: usize, width: usize) -> LayerNorm {
        LayerNorm { rows, shape: Shape { width, eps: Shape::EPS } }
    }

    /// This layer norm with another constant added to the variance.
    pub fn with_eps(self, eps: f64) -> LayerNorm {
        LayerNorm { shape: Shape { eps, ..self.shape }, ..self }
    }
}

impl<F: Float> Layer<F> for LayerNorm {
    fn inputs(&self) -> usize {
        self.rows * self.shape.width
    }

    fn outputs(&self) -> usize {
        self.rows * self.shape.width
    }

    fn operation(&self) -> LayerOperation {
        let Shape { width, eps } = self.shape;
        LayerOperation::LayerNorm { rows: self.rows, width, eps }
    }

    fn needs_output(&self) -> bool {
        false
    }

    fn params(&self) -> Vec<Tensor> {
        let width = [self.shape.width];
        vec![
            Tensor::new("weight", &width, Init::Constant(1.0)),
            Tensor::new("bias", &width, Init::Constant(0.0)),
        ]
    }

    fn cast(&self) -> Cast {
        Cast::Full
    }

    fn saved(&self, n: usize) -> (usize, usize) {
        (2 * n * self.rows, 0)
    }

    fn forward(&self, pass: Forward<F>) {
        let (w, b) = pass.params.split_at(self.shape.width);
        self.shape.forward(pass.x, w, b, &mut pass.saved.values, pass.y);
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        let (dw, db) = grads.split_at_mut(self.shape.width);
        self.shape.backward_params(pass.x, &pass.saved.values, pass.dy, dw, db);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        self.shape.backward_input(pass.x, &pass.params[..self.shape.width], &pass.saved.values, pass.dy, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        let [forward, params, input] = self.shape.cost::<F>(n * self.rows);
        LayerCost { sums: OpCost::default(), forward, evaluate: forward, params, input }
    }
}
