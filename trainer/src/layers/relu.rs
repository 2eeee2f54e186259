//! The rectifier.

use super::{Backward, Forward, Layer, LayerCost, Operation};
use allfold_kernels::nn::{Float, Relu as Kernel};

/// `max(x, 0)` of so many numbers per sample.
pub struct Relu(usize);

impl Relu {
    /// Over `outputs` numbers per sample.
    pub fn new(outputs: usize) -> Relu {
        Relu(outputs)
    }
}

impl<F: Float> Layer<F> for Relu {
    fn inputs(&self) -> usize {
        self.0
    }

    fn outputs(&self) -> usize {
        self.0
    }

    fn operation(&self) -> Operation {
        Operation::Relu
    }

    fn forward(&self, pass: Forward<F>) {
        Kernel::forward(pass.x, pass.y);
    }

    fn backward_input(&self, pass: &mut Backward<F>, _grads: &[F], dx: &mut [F]) {
        Kernel::backward(pass.y, pass.dy, dx);
    }

    fn cost(&self, n: usize) -> LayerCost {
        LayerCost {
            forward: Kernel::forward_cost::<F>(n * self.0),
            evaluate: Kernel::forward_cost::<F>(n * self.0),
            input: Kernel::backward_cost::<F>(n * self.0),
            ..LayerCost::default()
        }
    }
}
