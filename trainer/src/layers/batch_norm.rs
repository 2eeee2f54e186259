//! Batch normalisation of each channel, with running statistics for evaluation.

use super::{Backward, Forward, Init, Layer, LayerCost, Tensor};
use allfold_kernels::nn::{BatchNorm as Shape, Float};

/// A batch norm. Each rank of a data-parallel run normalises by its own samples.
pub struct BatchNorm(Shape);

impl BatchNorm {
    /// Over `channels` planes of `plane` pixels.
    pub fn new(channels: usize, plane: usize) -> BatchNorm {
        BatchNorm(Shape { channels, plane })
    }
}

impl<F: Float> Layer<F> for BatchNorm {
    fn inputs(&self) -> usize {
        self.0.channels * self.0.plane
    }

    fn outputs(&self) -> usize {
        self.0.channels * self.0.plane
    }

    fn params(&self) -> Vec<Tensor> {
        let channels = [self.0.channels];
        vec![
            Tensor::new("weight", &channels, Init::Constant(1.0)),
            Tensor::new("bias", &channels, Init::Constant(0.0)),
        ]
    }

    fn buffers(&self) -> Vec<Tensor> {
        let channels = [self.0.channels];
        vec![
            Tensor::new("running_mean", &channels, Init::Constant(0.0)),
            Tensor::new("running_var", &channels, Init::Constant(1.0)),
        ]
    }

    fn saved(&self, _n: usize) -> (usize, usize) {
        (2 * self.0.channels, 0)
    }

    fn forward(&self, pass: Forward<F>) {
        let (w, b) = pass.params.split_at(self.0.channels);
        if pass.train {
            self.0.forward(pass.n, pass.x, w, b, pass.buffers, &mut pass.saved.values, pass.y);
        } else {
            self.0.evaluate(pass.n, pass.x, w, b, pass.buffers, pass.y);
        }
    }

    fn backward_params(&self, pass: &mut Backward<F>, grads: &mut [F]) {
        let (dw, db) = grads.split_at_mut(self.0.channels);
        self.0.backward_params(pass.n, pass.x, &pass.saved.values, pass.dy, dw, db);
    }

    fn backward_input(&self, pass: &mut Backward<F>, grads: &[F], dx: &mut [F]) {
        let w = &pass.params[..self.0.channels];
        let sums = grads.split_at(self.0.channels);
        self.0.backward_input(pass.n, pass.x, w, &pass.saved.values, pass.dy, sums, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        LayerCost {
            forward: self.0.forward_cost::<F>(n),
            evaluate: self.0.evaluate_cost::<F>(n),
            params: self.0.backward_params_cost::<F>(n),
            input: self.0.backward_input_cost::<F>(n),
        }
    }
}
