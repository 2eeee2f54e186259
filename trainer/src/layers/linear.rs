//! Fully connected: `y = x w^T + b`.

use super::{Backward, Forward, Init, Layer, LayerCost, Tensor};
use allfold_kernels::nn::{Cost, Float, Linear as Shape};

/// A fully connected layer with a bias.
pub struct Linear(Shape);

impl Linear {
    /// From `inputs` to `outputs` numbers per sample.
    pub fn new(inputs: usize, outputs: usize) -> Linear {
        Linear(Shape { inputs, outputs })
    }

    fn weights(&self) -> usize {
        self.0.inputs * self.0.outputs
    }
}

impl<F: Float> Layer<F> for Linear {
    fn inputs(&self) -> usize {
        self.0.inputs
    }

    fn outputs(&self) -> usize {
        self.0.outputs
    }

    fn params(&self) -> Vec<Tensor> {
        let init = Init::Uniform(1.0 / (self.0.inputs as f64).sqrt());
        vec![
            Tensor::new("weight", &[self.0.outputs, self.0.inputs], init),
            Tensor::new("bias", &[self.0.outputs], init),
        ]
    }

    fn forward(&self, pass: Forward<F>) {
        let (w, b) = pass.params.split_at(self.weights());
        self.0.forward(pass.n, pass.x, w, b, pass.y);
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        let (dw, db) = grads.split_at_mut(self.weights());
        self.0.backward_params(pass.n, pass.x, pass.dy, dw, db);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        self.0.backward_input(pass.n, &pass.params[..self.weights()], pass.dy, dx);
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
