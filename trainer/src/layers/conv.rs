//! Convolution with a square kernel and no bias.

use super::{Backward, Forward, Init, Layer, LayerCost, Tensor};
use allfold_kernels::nn::{Conv2d as Shape, Cost, Float};

/// A convolution. It keeps the unrolled patches of the forward pass for the backward pass.
pub struct Conv2d(Shape);

impl Conv2d {
    /// A convolution of this shape.
    pub fn new(shape: Shape) -> Conv2d {
        Conv2d(shape)
    }
}

impl<F: Float> Layer<F> for Conv2d {
    fn inputs(&self) -> usize {
        self.0.inputs * self.0.picture.0 * self.0.picture.1
    }

    fn outputs(&self) -> usize {
        let (rows, cols) = self.0.output_picture();
        self.0.outputs * rows * cols
    }

    fn params(&self) -> Vec<Tensor> {
        let Shape { inputs, outputs, kernel, .. } = self.0;
        let init = Init::Uniform(1.0 / ((inputs * kernel * kernel) as f64).sqrt());
        vec![Tensor::new("weight", &[outputs, inputs, kernel, kernel], init)]
    }

    fn saved(&self, n: usize) -> (usize, usize) {
        (n * self.0.columns(), 0)
    }

    fn forward(&self, pass: Forward<F>) {
        self.0.forward(pass.n, pass.x, pass.params, &mut pass.saved.values, pass.y);
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        self.0.backward_params(pass.n, &pass.saved.values, pass.dy, grads);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        self.0.backward_input(pass.n, pass.params, pass.dy, &mut pass.saved.values, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        LayerCost {
            sums: Cost::default(),
            forward: self.0.forward_cost::<F>(n),
            evaluate: self.0.forward_cost::<F>(n),
            params: self.0.backward_params_cost::<F>(n),
            input: self.0.backward_input_cost::<F>(n),
        }
    }
}
